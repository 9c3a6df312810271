"""A deployment over real gRPC between real processes."""

import json
from pathlib import Path

import pytest

from erosion.server.run.journal import read_journal
from tests.support import programs
from tests.support.federation import Federation, small_study
from tests.support.patience import PATIENCE


def test_a_deployment_and_a_simulation_end_with_the_same_parameters(tmp_path: Path) -> None:
    with Federation(small_study(), tmp_path) as federation:
        for name in federation.study.hospitals:
            federation.start_site(name)
        federation.start()
        result = federation.finish()
        assert set(result.arms) == {"weight_erosion", "fedavg", "local"}
        federation.compare_with_simulation()


def test_every_round_is_in_the_journal_with_distances_weights_and_bytes(tmp_path: Path) -> None:
    with Federation(small_study(arms={"weight_erosion": {}}), tmp_path) as federation:
        for name in federation.study.hospitals:
            federation.start_site(name)
        federation.start()
        federation.finish()
        lines = list(read_journal(federation.run_folder.journal))
    assert [line["round"] for line in lines] == [1, 2, 3, 4]
    for line in lines:
        bob = line["hospitals"]["bob"]
        assert bob["outcome"] == "accepted"
        assert bob["distance"] > 0
        assert bob["weight_after"] < (bob["weight_before"] or 1.0)
        assert bob["bytes_received"] > 0
        assert 0 <= line["user_metrics"]["accuracy"] <= 1


def test_the_run_folder_holds_all_that_predicting_needs(tmp_path: Path) -> None:
    with Federation(small_study(rounds=1), tmp_path) as federation:
        for name in federation.study.hospitals:
            federation.start_site(name)
        federation.start()
        result = federation.finish()
        folder = federation.run_folder
    card = json.loads(folder.model_card.read_text())
    assert card["task"]["features"][0]["name"] == "age"
    assert len(card["scaling"]["mean"]) == 2
    assert json.loads(folder.result.read_text())["verdict"]["text"] == result.verdict.text
    assert "<html" in folder.report.read_text().lower()


@pytest.mark.parametrize(
    ("program", "outcome", "reason"),
    [
        (programs.sends_nan, "rejected", "not finite"),
        (programs.sends_a_wrong_shape, "rejected", "shape (5,), expected (6,)"),
        (programs.sends_a_stale_round, "rejected", "round 0, expected 1"),
        (programs.sends_a_negative_count, "rejected", "-4 samples"),
        (programs.answers_as_another, "rejected", "answered as 'alice'"),
        (programs.sends_no_header, "rejected", "without a header"),
        (programs.raises, "absent", "an unexpected ZeroDivisionError at the site"),
    ],
)
def test_a_misbehaving_hospital_is_recorded_and_the_study_goes_on(
    tmp_path: Path, program: object, outcome: str, reason: str
) -> None:
    study = small_study(rounds=2, arms={"fedavg": {}})
    with Federation(study, tmp_path) as federation:
        federation.start_site("alice")
        federation.start_site("bob", program)  # type: ignore[arg-type]
        federation.start_site("carol")
        federation.start()
        federation.finish()
        first = federation.observer.records[0]
    assert first.outcome == "done"
    assert first.hospitals["bob"].outcome == outcome
    assert reason in first.hospitals["bob"].reason
    assert first.hospitals["carol"].outcome == "accepted"


def test_a_slow_hospital_comes_back_with_the_newest_round(tmp_path: Path) -> None:
    study = small_study(rounds=12, arms={"fedavg": {}}, federation={"round_deadline_seconds": 4.0})
    with Federation(study, tmp_path) as federation:
        federation.start_site("alice")
        federation.start_site("bob", programs.is_slow_once)
        federation.start()
        federation.start_site("carol")
        federation.finish()
        outcomes = [r.hospitals["bob"].outcome for r in federation.observer.records]
    assert outcomes[0] == "accepted"
    assert outcomes[1] == "absent"
    # It slept through rounds 2 and 3 and answers from then on: no stale rounds to work off first.
    assert set(outcomes[4:]) == {"accepted"}


def test_a_hospital_killed_in_a_round_is_known_to_be_gone_long_before_the_deadline(
    tmp_path: Path,
) -> None:
    study = small_study(arms={"fedavg": {}}, federation={"round_deadline_seconds": 6000.0})
    with Federation(study, tmp_path) as federation:
        federation.start_site("alice")
        federation.start_site("bob", programs.dies_in_round_2)
        federation.start_site("carol")
        federation.start()
        federation.finish()  # long before the round's deadline
        records = federation.observer.records
    assert records[0].hospitals["bob"].outcome == "accepted"
    assert records[1].hospitals["bob"].reason == "the site left or lost its connection"
    assert [r.outcome for r in records] == ["done"] * 4


def test_a_hospital_killed_while_it_uploads_costs_nobody_the_round(tmp_path: Path) -> None:
    study = small_study(rounds=2, arms={"fedavg": {}}, federation={"round_deadline_seconds": 30.0})
    with Federation(study, tmp_path) as federation:
        federation.start_site("alice")
        federation.start_site("bob", programs.dies_while_uploading)
        federation.start_site("carol")
        federation.start()
        federation.finish()
        records = federation.observer.records
    assert [r.outcome for r in records] == ["done", "done"]
    assert records[0].hospitals["bob"].outcome == "absent"


def test_the_user_may_come_back_within_a_round_and_nothing_is_lost(tmp_path: Path) -> None:
    study = small_study(rounds=6, arms={"fedavg": {}})
    with Federation(study, tmp_path) as federation:
        federation.start_site("alice", programs.dies_in_round_2)
        federation.start_site("bob")
        federation.start_site("carol")
        federation.start()
        federation.observer.wait_for(lambda: ("left", "alice") in federation.observer.events)
        federation.start_site("alice", index=2)
        federation.finish()
        outcomes = [r.outcome for r in federation.observer.records]
    assert outcomes == ["done"] * 6  # the round in which it died, too: it was asked again


def test_of_two_sites_with_one_name_the_second_is_turned_away(tmp_path: Path) -> None:
    study = small_study(rounds=2, arms={"fedavg": {}})
    with Federation(study, tmp_path) as federation:
        federation.start_site("bob")
        federation.start()
        federation.observer.wait_for(lambda: ("joined", "bob") in federation.observer.events)
        impostor = federation.start_site("bob", index=2)
        impostor.join(PATIENCE)
        assert impostor.exitcode == 6
        federation.start_site("alice")
        federation.start_site("carol")
        federation.finish()
        events = federation.observer.events
    declined = [event for event in events if event[0] == "declined"]
    assert len(declined) == 1
    assert "already connected as 'bob'" in declined[0][2]
