"""A deployment over real gRPC between real processes."""

import json
from collections.abc import Callable
from pathlib import Path

import torch

from erosion.simulation.simulator import simulate
from erosion.simulation.testbed_sites import site_of
from erosion_client.training.hospital import Hospital
from erosion_common.protocol.scaling import CUT
from erosion_common.rounds import checkpoint
from erosion_server.run.journal import read_journal
from tests.support import programs
from tests.support.federation import Federation, small_study

LIARS: dict[str, tuple[Callable[[str], None], str, str]] = {  # what each is recorded as, and why
    "nan": (programs.sends_nan, "rejected", "not finite"),
    "shape": (programs.sends_a_wrong_shape, "rejected", "shape (5,), expected (6,)"),
    "stale": (programs.sends_a_stale_round, "rejected", "round 0, expected 1"),
    "count": (programs.sends_a_negative_count, "rejected", "num_samples is wrong"),
    "name": (programs.answers_as_another, "rejected", "answered as 'alice'"),
    "header": (programs.sends_no_header, "rejected", "without a header"),
    "error": (programs.raises, "absent", "an unexpected ZeroDivisionError at the site"),
}


def test_a_deployment_ends_as_a_simulation_does_and_leaves_all_that_predicting_needs(
    tmp_path: Path,
) -> None:
    with Federation(small_study(), tmp_path) as federation:
        for name in federation.study.hospitals:
            federation.start_site(name)
        federation.start()
        result = federation.finish()
        federation.compare_with_simulation()
        folder = federation.run_folder
        lines = list(read_journal(folder.journal))
    assert set(result.arms) == {"weight_erosion", "fedavg", "local"}
    assert [(line["arm"], line["round"]) for line in lines] == [
        (arm, number) for arm in federation.study.arms for number in (1, 2, 3, 4)
    ]
    for line in lines[:4]:
        bob = line["hospitals"]["bob"]
        assert bob["outcome"] == "accepted"
        assert bob["distance"] > 0
        assert bob["weight_after"] < (bob["weight_before"] or 1.0)
        assert bob["bytes_received"] > 0
        assert 0 <= line["user_metrics"]["accuracy"] <= 1
    card = json.loads(folder.model_card.read_text())
    assert card["task"]["features"][0]["name"] == "age"
    assert len(card["scaling"]["mean"]) == 2
    assert card["cut"] == CUT.model_dump()
    assert json.loads(folder.result.read_text())["verdict"]["text"] == result.verdict.text
    assert "<html" in folder.report.read_text().lower()


def test_a_simulation_in_processes_and_a_deployment_end_with_the_same_bits(
    tmp_path: Path,
) -> None:
    study = small_study(arms={"weight_erosion": {"distance_penalty": 0.3}, "ditto": {}})
    with Federation(study, tmp_path) as federation:
        for name in study.hospitals:
            federation.start_site(name)
        federation.start()
        result = federation.finish()
        hospitals = {
            name: Hospital(site_of(name, {"path": tmp_path / name / "data.csv"}))
            for name in study.hospitals
        }
        simulated = simulate(study, hospitals, workers=2)
        for arm, final in simulated.finals.items():
            path = federation.run_folder.checkpoint(arm)
            deployed = checkpoint.load(path, final, arm=arm, study_digest=study.digest)
            assert torch.equal(deployed.params, final.params)
            assert deployed.weights == final.weights
            assert result.arms[arm].metrics == simulated.evaluation.arms[arm]


def test_a_cross_fitted_deployment_and_its_simulation_end_with_the_same_figures(
    tmp_path: Path,
) -> None:
    study = small_study(
        rounds=2,
        arms={"evidence_erosion": {}, "local": {}},
        evaluation={"folds": 2, "bootstrap": 100},
    )
    with Federation(study, tmp_path) as federation:
        for name in study.hospitals:
            federation.start_site(name)
        federation.start()
        result = federation.finish()
        simulated = federation.compare_with_simulation()
        assert result.comparison == simulated.evaluation.comparison
        assert result.comparison is not None
        assert result.comparison.num_patients == 60
        assert result.cross_fitting is not None
        assert "60 patients, each predicted by models that never saw them" in result.verdict.text
        page = " ".join(federation.run_folder.report.read_text().split())
        assert "cut into 2 folds" in page


def test_misbehaving_hospitals_are_recorded_and_the_study_goes_on(tmp_path: Path) -> None:
    hospitals = ["alice", "carol", *LIARS]
    study = small_study(rounds=2, arms={"fedavg": {}}, hospitals=hospitals)
    with Federation(study, tmp_path) as federation:
        for name in hospitals:
            program, _, _ = LIARS.get(name, (programs.honest, "", ""))
            federation.start_site(name, program)
        federation.start()
        federation.finish()
        first = federation.observer.records[0]
    assert first.outcome == "done"
    assert first.hospitals["carol"].outcome == "accepted"
    found = {name: (entry.outcome, entry.reason) for name, entry in first.hospitals.items()}
    for name, (_, outcome, reason) in LIARS.items():
        assert found[name][0] == outcome, name
        assert reason in found[name][1], name


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
