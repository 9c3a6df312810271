"""Studies among enrolled sites, each a process of its own, over TLS."""

from pathlib import Path

from erosion_common.support.files import write_atomically
from erosion_server.coordination.description import ask_all
from erosion_server.output.description import description_page
from tests.support import programs
from tests.support.enrolled import EnrolledFederation
from tests.support.federation import Federation, small_study
from tests.support.html_page import Page
from tests.support.patience import PATIENCE


def test_enrolled_sites_run_a_study_over_tls_and_nobody_else_takes_part(tmp_path: Path) -> None:
    study = small_study(rounds=2)
    with EnrolledFederation(study, tmp_path) as federation:
        events, seen = federation.observer.events, federation.observer
        federation.start()
        path = federation.site_file("carol", 2, key_of="bob")
        impostor = federation.start_program("impostor", programs.honest, path)
        impostor.join(PATIENCE)
        assert impostor.exitcode == 6
        federation.start_site("bob")
        seen.wait_for(lambda: ("joined", "bob") in events)
        twin = federation.start_program("twin", programs.honest, tmp_path / "bob" / "site.toml")
        in_use = ("declined", "another connection as bob")
        seen.wait_for(lambda: any(event[:2] == in_use for event in events))
        twin.kill()
        for name in ("alice", "carol"):
            federation.start_site(name)
        roster = federation.keys.roster
        for _ in range(20):  # as where hospitals are enrolled while a study runs
            write_atomically(roster, roster.read_bytes(), mode=0o600)
        result = federation.finish()
        ledger = federation.run_folder.contributions.read_text().splitlines()
        secrets = [
            (tmp_path / name / "node.key").read_text().splitlines()[1] for name in study.hospitals
        ]
        kept = [p.read_text(errors="replace") for p in tmp_path.glob("runs/**/*") if p.is_file()]
    declined = [event for event in events if event[0] == "declined"]
    assert declined[0] == ("declined", "carol", "its key was not enrolled for the name 'carol'")
    assert {event[:2] for event in declined[1:]} == {in_use}
    assert ("left", "bob") not in events
    for record in seen.records:
        asked = ["bob", "carol"] if record.arm != "local" else []
        assert [record.hospitals[name].outcome for name in asked] == ["accepted"] * len(asked)
    assert set(result.arms) == {"weight_erosion", "fedavg", "local"}
    assert ledger[0] == "arm,hospital,rounds,weight_sum,samples_seen"
    assert any(line.startswith("fedavg,bob,2,") for line in ledger)
    assert "local,bob,0,0,0" in ledger  # that arm asks nobody but the user
    assert not any(secret in text for secret in secrets for text in kept)


# -- `erosion describe` over gRPC: sites answer if somebody there approved the study -------------


def test_hospitals_are_compared_before_any_training_and_who_declines_is_named(
    tmp_path: Path,
) -> None:
    study = small_study(arms={"fedavg": {}})
    with Federation(study, tmp_path) as federation:
        for name in ("alice", "bob"):
            federation.start_site(name)
        data = federation.folder / "bob" / "data.csv"
        carol = federation.site_file("carol")
        carol.write_text(carol.read_text() + '[limits]\nstudies = ["others"]\n')
        lines = [line.split(",") for line in data.read_text().splitlines()]
        wrong = [lines[0], *([f"{float(age) + 10:.2f}", *rest] for age, *rest in lines[1:])]
        data.write_text("\n".join(map(",".join, wrong)) + "\n")
        federation.start_program("carol", programs.honest, carol)
        found = ask_all(study, federation.link, PATIENCE)
    assert set(found.replies) == {"alice", "bob"}
    assert "limits.studies" in found.declined["carol"]
    assert found.missing == []
    assert found.replies["bob"].min_cell == 10
    assert {(f.column, f.hospital) for f in found.misfits} >= {("age", "bob")}
    page = Page(description_page(found)).text
    assert "2 of 3 hospitals described" in page
    assert "limits.studies" in page
