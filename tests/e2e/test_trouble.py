"""Hospitals that lie, are slow or die, and a full disk, in a deployment between real processes."""

from pathlib import Path

from tests.support import programs
from tests.support.federation import Federation, small_study


def test_a_slow_hospital_comes_back_with_the_newest_round(tmp_path: Path) -> None:
    study = small_study(rounds=12, arms={"fedavg": {}}, federation={"round_deadline_seconds": 8.0})
    with Federation(study, tmp_path) as federation:
        federation.start_site("alice")
        federation.start_site("bob", programs.is_slow_once)
        federation.start()
        federation.start_site("carol")
        federation.observer.wait_for(lambda: len(federation.observer.records) >= 3)
        (tmp_path / "bob" / "wake").touch()
        federation.finish()
        outcomes = [r.hospitals["bob"].outcome for r in federation.observer.records]
    assert outcomes[:3] == ["accepted", "absent", "absent"]
    assert "accepted" in outcomes[3:]
    worked_on = (tmp_path / "bob" / "worked_on").read_text().split()
    assert worked_on[:2] == ["fedavg/1", "fedavg/2"]
    assert "fedavg/3" not in worked_on  # which was over when it woke up


def test_hospitals_that_are_killed_cost_nobody_a_round_and_the_user_may_come_back(
    tmp_path: Path,
) -> None:
    study = small_study(
        rounds=6,
        arms={"fedavg": {}},
        hospitals=["alice", "bob", "carol", "dave"],
        federation={"round_deadline_seconds": 6000.0},  # nobody waits so long
    )
    with Federation(study, tmp_path) as federation:
        federation.start_site("alice", programs.dies_in_round_2)
        federation.start_site("bob", programs.dies_in_round_2)
        federation.start_site("carol")
        federation.start_site("dave", programs.dies_while_uploading)
        federation.start()
        federation.observer.wait_for(lambda: ("left", "alice") in federation.observer.events)
        federation.start_site("alice", index=2)
        federation.finish()
        records = federation.observer.records
    assert [r.outcome for r in records] == ["done"] * 6  # round 2, too: the user was asked again
    assert records[0].hospitals["dave"].outcome == "absent"
    assert records[0].hospitals["bob"].outcome == "accepted"
    assert records[1].hospitals["bob"].reason == "the site left or lost its connection"
    assert {r.hospitals["carol"].outcome for r in records} == {"accepted"}
