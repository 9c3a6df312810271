"""Studies among enrolled sites, each a process of its own, over TLS."""

from pathlib import Path

from erosion.common.support.files import write_atomically
from erosion.server.enrolment.enrolment import revoke_site
from erosion.server.run.journal import read_journal
from tests.support import programs
from tests.support.enrolled import EnrolledFederation
from tests.support.federation import small_study
from tests.support.patience import PATIENCE

ONE_ARM: dict[str, object] = {"fedavg": {}}


def test_enrolled_sites_run_a_study_over_tls(tmp_path: Path) -> None:
    study = small_study(rounds=2)
    with EnrolledFederation(study, tmp_path) as federation:
        for name in study.hospitals:
            federation.start_site(name)
        federation.start()
        result = federation.finish()
        ledger = federation.run_folder.contributions.read_text().splitlines()
        secrets = [
            (tmp_path / name / "node.key").read_text().splitlines()[1] for name in study.hospitals
        ]
        kept = [p.read_text(errors="replace") for p in tmp_path.glob("runs/**/*") if p.is_file()]
    assert set(result.arms) == {"weight_erosion", "fedavg", "local"}
    assert ledger[0] == "arm,hospital,rounds,weight_sum,samples_seen"
    assert any(line.startswith("fedavg,bob,2,") for line in ledger)
    assert "local,bob,0,0,0" in ledger  # that arm asks nobody but the user
    assert not any(secret in text for secret in secrets for text in kept)


def test_a_site_that_is_revoked_in_a_run_is_out_from_the_next_round_on(tmp_path: Path) -> None:
    study = small_study(rounds=100, arms=ONE_ARM)
    with EnrolledFederation(study, tmp_path) as federation:
        federation.start_site("alice", programs.takes_its_time_until_told)
        federation.start_site("bob")
        carol = federation.start_site("carol")
        federation.start()
        federation.observer.wait_for(lambda: ("round", "fedavg", 2) in federation.observer.events)
        revoke_site(federation.keys, "carol")
        carol.join(PATIENCE)
        assert carol.exitcode == 6  # it is told, and ends
        (tmp_path / "alice" / "hurry").touch()
        federation.finish()
        records = [record.hospitals["carol"] for record in federation.observer.records]
        told = [e for e in federation.observer.events if e[:2] == ("declined", "carol")]
    outcomes = [record.outcome for record in records]
    assert outcomes[0] == "accepted"
    assert outcomes == sorted(outcomes, key=["accepted", "absent"].index)
    assert "its key was revoked" in records[-1].reason
    assert len(told) == 1


def test_a_site_that_claims_another_name_is_turned_away(tmp_path: Path) -> None:
    study = small_study(rounds=2, arms=ONE_ARM)
    with EnrolledFederation(study, tmp_path) as federation:
        federation.start()
        path = federation.site_file("carol", 2, key_of="bob")
        impostor = federation.start_program("impostor", programs.honest, path)
        impostor.join(PATIENCE)
        assert impostor.exitcode == 6
        for name in study.hospitals:
            federation.start_site(name)
        federation.finish()
        declined = [event for event in federation.observer.events if event[0] == "declined"]
        lines = list(read_journal(federation.run_folder.journal))
    assert declined == [("declined", "carol", "its key was not enrolled for the name 'carol'")]
    assert all(line["hospitals"]["carol"]["outcome"] == "accepted" for line in lines)


def test_a_site_killed_while_it_trains_comes_back_at_once_with_the_same_key(
    tmp_path: Path,
) -> None:
    study = small_study(
        rounds=100, arms=ONE_ARM, federation={"round_deadline_seconds": 6000.0}
    )  # no round can end by its deadline within the test
    with EnrolledFederation(study, tmp_path) as federation:
        federation.start_site("alice", programs.takes_its_time_until_told)
        federation.start_site("carol")
        bob = federation.start_site("bob", programs.dies_in_round_2)
        federation.start()
        bob.join(PATIENCE)
        assert bob.exitcode == -9
        federation.start_program("bob again", programs.honest, tmp_path / "bob" / "site.toml")
        events = federation.observer.events
        federation.observer.wait_for(lambda: events.count(("joined", "bob")) == 2, 90.0)
        (tmp_path / "alice" / "hurry").touch()
        federation.finish()
        records = [record.hospitals["bob"] for record in federation.observer.records]
        outcomes = [record.outcome for record in records]
    assert outcomes[0] == "accepted"
    assert records[1].reason == "the site left or lost its connection"
    assert outcomes[-1] == "accepted"
    first = outcomes.index("accepted", 1)
    assert set(outcomes[first:]) == {"accepted"}


def test_a_second_connection_with_a_sites_key_does_not_make_the_site_look_gone(
    tmp_path: Path,
) -> None:
    study = small_study(rounds=2, arms=ONE_ARM)
    with EnrolledFederation(study, tmp_path) as federation:
        federation.start_site("bob")
        federation.start()
        events = federation.observer.events
        federation.observer.wait_for(lambda: ("joined", "bob") in events)
        twin = federation.start_program("twin", programs.honest, tmp_path / "bob" / "site.toml")
        federation.observer.wait_for(lambda: any(e[0] == "declined" for e in events))
        twin.kill()
        for name in ("alice", "carol"):
            federation.start_site(name)
        federation.finish()
    told = [event[1] for event in events if event[0] == "declined"]
    assert set(told) == {"another connection as bob"}


def test_the_roster_may_be_replaced_many_times_in_a_run(tmp_path: Path) -> None:
    study = small_study(rounds=5, arms=ONE_ARM)
    with EnrolledFederation(study, tmp_path) as federation:
        roster = federation.keys.roster
        for name in study.hospitals:
            federation.start_site(name)
        federation.start()
        for _ in range(20):
            write_atomically(roster, roster.read_bytes(), mode=0o600)
        federation.finish()
        outcomes = [r.hospitals["bob"].outcome for r in federation.observer.records]
    assert set(outcomes) == {"accepted"}
