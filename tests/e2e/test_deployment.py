"""Deployments over real gRPC between real processes: each equals its simulation."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from erosion.simulation.simulator import simulate
from erosion.simulation.testbed_sites import site_of
from erosion_client.evaluation.predict import predict
from erosion_client.training.hospital import Hospital
from erosion_common.formats.model_card import read_model
from erosion_common.learning.finished import Finished
from erosion_common.program.command_line import main
from erosion_common.protocol.scaling import CUT
from erosion_common.rounds import checkpoint
from erosion_common.study.study import Study
from erosion_server.coordination.folder_store import FolderStore
from erosion_server.coordination.run_study import MEMORY_SHARE, Setup, need_disk
from erosion_server.link import Link, spool
from erosion_server.output.events import RunEvent
from erosion_server.output.observers import InBackground
from erosion_server.run.journal import read_journal, read_records
from tests.support import federation as support_federation
from tests.support import programs
from tests.support.close import assert_close
from tests.support.federation import Federation, deployed, simulated_alike, small_study, write_site


class FailsAlways:
    """An output that raises what a failed web request raises, whatever it is told."""

    def __init__(self) -> None:
        self.num_calls = 0

    def notify(self, event: RunEvent) -> None:
        self.num_calls += 1
        raise ConnectionError("no route to host")

    def close(self) -> None:
        raise ConnectionError("no route to host")


def test_a_deployment_whose_outputs_fail_ends_with_the_simulations_bits_and_all_it_has_to_leave(
    tmp_path: Path,
) -> None:
    failing = FailsAlways()
    study = small_study(
        arms={"weight_erosion": {"distance_penalty": 0.1}, "ditto": {}, "local": {}}
    )
    with Federation(study, tmp_path) as federation:
        federation.outputs = {
            "bad": failing,
            "worse": InBackground(FailsAlways()),
            **federation.outputs,
        }
        result = federation.run_with(dict.fromkeys(study.hospitals, programs.honest))
        federation.compare_with_simulation()
        folder = federation.run_folder
        hospitals = {
            name: Hospital(site_of(name, {"path": tmp_path / name / "data.csv"}))
            for name in study.hospitals
        }
        simulated_alike(study, folder, hospitals)
        lines = list(read_journal(folder.journal))
    assert set(result.arms) == set(study.arms)
    assert [(line["arm"], line["round"]) for line in lines] == [
        (arm, number) for arm in study.arms for number in (1, 2, 3, 4)
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
    assert failing.num_calls == 1
    assert set(json.loads(folder.status.read_text())["outputs_dropped"]) == {"bad", "worse"}
    assert read_records(folder.journal) == federation.observer.records
    assert folder.has_ended


def test_a_cross_fitted_deployment_and_its_simulation_end_with_the_same_figures(
    tmp_path: Path,
) -> None:
    study = small_study(
        rounds=2,
        arms={"evidence_erosion": {}, "local": {}},
        evaluation={"folds": 2, "bootstrap": 100},
    )
    with deployed(study, tmp_path) as (federation, result):
        simulated = federation.compare_with_simulation()
        assert result.comparison == simulated.evaluation.comparison
        assert result.comparison is not None
        assert result.comparison.num_patients == 60
        assert result.cross_fitting is not None
        page = " ".join(federation.run_folder.report.read_text().split())
        assert "cut into 2 folds" in page


def test_a_compressed_deployment_equals_its_simulation(tmp_path: Path) -> None:
    study = small_study(
        model={"name": "mlp", "hidden": [200]},
        arms={"weight_erosion": {"distance_penalty": 0.1}, "scaffold": {}},
        federation={
            "compression": "int8",
            "round_deadline_seconds": 120.0,
            "join_deadline_seconds": 300.0,
        },
    )
    with deployed(study, tmp_path) as (federation, _):
        federation.compare_with_simulation()
        lines = list(read_journal(federation.run_folder.journal))
    numbers = 2 * 200 + 200 + 200 * 2 + 2  # of the model
    for line in lines:
        if line["arm"] == "weight_erosion":
            for hospital in line["hospitals"].values():
                assert hospital["bytes_received"] < 4 * numbers  # a quarter, and the header


def test_methods_with_statistics_of_their_own_equal_their_simulations(tmp_path: Path) -> None:
    kept = {"own_parameters": ["normalisation"]}
    arms = dict.fromkeys(("fedala", "fedamp", "ifca"), kept) | {"fedbn": {}, "lg_fedavg": {}}
    arms["fedrep"] = {"own_parameters": ["output_layer", "normalisation"]}
    model = {"name": "mlp", "hidden": [4], "normalisation": "site"}
    study = small_study(model=model, arms=arms, rounds=3)
    with deployed(study, tmp_path) as (federation, result):
        assert set(result.arms) == set(arms)
        federation.compare_with_simulation()


def test_a_site_that_lost_the_study_is_sent_it_again_within_the_round(tmp_path: Path) -> None:
    study = small_study(arms={"weight_erosion": {}, "fedlin": {}}, rounds=2)
    forgetful = dict.fromkeys(("alice", "bob"), programs.forgets_its_studies)  # the user, too
    with deployed(study, tmp_path, **forgetful) as (federation, _):
        federation.compare_with_simulation()
        lines = list(read_journal(federation.run_folder.journal))
    size = len(study.canonical_json())
    assert [line["outcome"] for line in lines] == ["done"] * 4
    for line in lines:
        sent = {name: entry["bytes_sent"] for name, entry in line["hospitals"].items()}
        assert {entry["outcome"] for entry in line["hospitals"].values()} == {"accepted"}
        assert sent["alice"] > sent["carol"] + size  # the request twice, once with the study
        assert sent["bob"] > sent["carol"] + size


# -- Methods whose part at the hospital is more than local training --------------------------------

# One of each kind: with two exchanges in a round, with attachments, with state at the site, with
# tensors enclosed for everyone or for the user, with several models, with parameters that never
# leave, and with a finish.
ARMS: dict[str, Any] = {
    "ensemble": {},
    "evidence_erosion": {},
    "ditto": {},
    "scaffold": {},
    "fedlin": {},
    "fedfomo": {},
    "own_bias": {"algorithm": "weight_erosion", "own_parameters": ["output_bias"]},
    "finished": {"algorithm": "weight_erosion", "finish": "evidence"},
    **{name: {} for name in ("fedamp", "ifca", "per_fedavg", "pfedme", "waffle")},
}


def test_every_kind_of_method_agrees_with_its_simulation_and_the_result_predicts(
    tmp_path: Path,
) -> None:
    with deployed(small_study(arms=ARMS, rounds=3), tmp_path) as (federation, _):
        simulated = federation.compare_with_simulation()
        for record in federation.observer.records:
            steps = [step.step for step in record.steps]
            assert steps == (["gradient", "train"] if record.arm == "fedlin" else [])
            for step in record.steps:
                assert all((entry.bytes_received or 0) > 0 for entry in step.hospitals.values())
        folder = federation.run_folder
        patients = federation.folder / "alice" / "data.csv"
        output = tmp_path / "predictions.csv"
        assert main(["predict", str(folder.path), str(patients), "-o", str(output)]) == 0
    truth = [row["ill"] for row in csv.DictReader(patients.read_text().splitlines())]
    predicted = [row["predicted"] for row in csv.DictReader(output.read_text().splitlines())]
    right = sum(a == b for a, b in zip(truth, predicted, strict=True))
    assert right > 0.75 * len(truth)
    saved = checkpoint.load_model(folder.model)
    assert saved.shape == (3, 6)  # a model of each hospital
    assert_close(saved, simulated.personal["ensemble"])
    own = set(ARMS) - {"scaffold", "fedlin", "finished", "fedamp", "ifca", "waffle"}
    assert set(simulated.personal) == {*own, "finished (finish)"}
    _, finished = read_model(folder.path, "finished")
    assert isinstance(finished, Finished)
    assert torch.equal(finished.layers, simulated.personal["finished (finish)"])


def test_a_pooled_regression_agrees_with_its_simulation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def letting_gradients_leave(*place: Any) -> Path:
        path = write_site(*place)
        path.write_text(f"{path.read_text()}[limits]\nmin_local_steps = 1\n")
        return path

    monkeypatch.setattr(support_federation, "write_site", letting_gradients_leave)
    eroded = {"algorithm": "newton", "penalty": 0.1, "distance_penalty": 0.1}
    study = small_study(arms={"newton": {}, "eroded": eroded}, rounds=9)
    with deployed(study, tmp_path) as (federation, result):
        federation.compare_with_simulation()
        last = [r for r in federation.observer.records if r.arm == "newton"][-1]
    asked = {name: record.outcome for name, record in last.hospitals.items()}
    assert last.outcome == "stopped"
    assert asked == {"alice": "accepted", "bob": "not_asked", "carol": "not_asked"}
    assert result.performance is not None
    assert all(each.pooled is not None for each in result.performance.coefficients)


def test_settings_are_chosen_alike_in_a_deployment_and_in_a_simulation(tmp_path: Path) -> None:
    penalties = [{"distance_penalty": penalty} for penalty in (0.001, 1.0)]
    study = small_study(
        arms={"weight_erosion": {}, "local": {}},
        rounds=3,
        selection={"folds": 2, "candidates": {"weight_erosion": penalties}},
    )
    with deployed(study, tmp_path) as (federation, result):
        simulated = simulate(study, {name: federation.hospital(name) for name in study.hospitals})
        num_trial_rounds = len(FolderStore(federation.run_folder).rounds_in_folds())
    assert num_trial_rounds == 2 * (2 + 1) * 4  # folds, candidates of both arms, rounds and one
    for arm, choice in simulated.choices.items():
        selected = result.arms[arm].selected
        assert selected is not None
        assert (selected.settings, selected.rounds) == (choice.settings, choice.rounds)
        assert selected.loss == pytest.approx(choice.loss)
        assert result.arms[arm].rounds == choice.rounds
        assert result.arms[arm].metrics == simulated.evaluation.arms[arm]


GEMS: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "logistic": (
        {"name": "logistic"},
        {
            "gems": {},
            "personal_gems": {},
            "in_a_ball": {"algorithm": "personal_gems", "balls": "user"},
        },
        ["train", "check"],
    ),
    "network": (
        {"name": "mlp", "hidden": [9, 6]},
        {"network_gems": {"clusters": 4, "public_hospital": "carol"}},
        ["neurons", "neurons", "output", "tune", "check"],
    ),
}


@pytest.mark.parametrize("model", GEMS)
def test_gems_agrees_with_its_simulation_and_stops_alike(tmp_path: Path, model: str) -> None:
    settings, arms, steps = GEMS[model]
    study = small_study(model=settings, arms=arms, rounds=2)
    with deployed(study, tmp_path) as (federation, result):
        simulated = federation.compare_with_simulation()
        records = list(federation.observer.records)
        report = federation.run_folder.report.read_text()
    for arm, expected in simulated.records.items():
        found = [record for record in records if record.arm == arm]
        assert [(r.outcome, r.note) for r in found] == [(r.outcome, r.note) for r in expected]
        assert [r.outcome for r in found] == ["done", "stopped"]
    for arm, ended in result.arms.items():  # an arm that its rule stops has a result
        assert (ended.rounds, ended.stopped) == (2, simulated.records[arm][-1].note)
        assert f"{arm} stopped in round 2: " in report
    assert [step.step for step in records[0].steps] == steps
    assert "by their own check" in records[0].note
    assert set(result.arms) == set(arms)


# -- Other outcomes --------------------------------------------------------------------------------

TASKS: dict[str, dict[str, Any]] = {
    "regression": {"target": "outcome", "centre": 10, "spread": 3},
    "survival": {"target": {"time": "outcome", "event": "event"}, "cut_points": [5, 10, 20]},
}
COLUMNS = {"regression": ["predicted"], "survival": ["event_free_at_5", "risk"]}


def write_patients(path: Path, name: str) -> None:
    """Sixty patients whose outcome depends on age and dose, some followed for a while only."""
    draws = np.random.default_rng(sum(map(ord, name)))
    rows = draws.normal(size=(60, 2))
    outcome = np.clip(10 + 3 * rows[:, 0] - 2 * rows[:, 1] + draws.normal(size=60), 0.1, None)
    event = draws.uniform(size=60) < 0.7
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["age", "dose", "outcome", "event"])
        writer.writerows(
            [f"{a:.4f}", f"{d:.4f}", f"{o:.4f}", int(e)]
            for (a, d), o, e in zip(rows, outcome, event, strict=True)
        )


@pytest.mark.parametrize("outcome", sorted(TASKS))
def test_every_outcome_equals_its_simulation_and_ends_with_a_verdict(
    tmp_path: Path, outcome: str
) -> None:
    task = {"kind": "tabular", "outcome": outcome, "features": ["age", "dose"], **TASKS[outcome]}
    study = small_study(
        task=task,
        arms={"weight_erosion": {"distance_penalty": 0.1}, "personal_intercept": {}, "local": {}},
        training={"steps": 3, "batch_size": 8, "learning_rate": 0.1},
    )

    class OfThatOutcome(Federation):
        def site_file(self, name: str, index: int | None = None) -> Path:
            path = super().site_file(name, index)
            write_patients(path.parent / "data.csv", name)
            return path

    with OfThatOutcome(study, tmp_path) as federation:
        result = federation.run_with(dict.fromkeys(study.hospitals, programs.honest))
        federation.compare_with_simulation()
        folder = federation.run_folder
    assert result.outcome == outcome
    assert result.comparison is not None
    assert result.base_rate is not None
    assert result.base_rate[study.task.verdict_metric] > 0
    assert result.verdict.text
    data, output = tmp_path / "alice" / "data.csv", tmp_path / "predictions.csv"
    predict(folder.path, data, output)
    predicted = list(csv.DictReader(output.read_text().splitlines()))
    assert len(predicted) == 60
    assert set(COLUMNS[outcome]) <= set(predicted[0])


# -- Updates on the coordinator's disk -------------------------------------------------------------


def large(hidden: int, **changes: Any) -> Study:
    """A study whose updates have five numbers for each neuron, and two."""
    return small_study(model={"name": "mlp", "hidden": [hidden]}, **changes)


def test_a_deployment_on_disk_and_a_simulation_end_with_the_same_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A site whose transfer were not seen to end would keep the others waiting beyond the deadline.
    monkeypatch.setattr(spool, "LONGEST_PACE_SECONDS", 600.0)
    monkeypatch.setattr(spool, "LONGEST_WAIT_SECONDS", 6000.0)
    # 2 MB, which go to the disk, and attachments of that size; test_cohort.py has every rule.
    study = large(100_000, arms={"weight_erosion": {}, "scaffold": {}}, rounds=3)
    link = Link("127.0.0.1:0")
    with Federation(study, tmp_path, link, Setup(updates="disk")) as federation:
        folder = federation.run_folder.spool
        for name in study.hospitals:
            federation.start_site(name)
        federation.start()
        federation.observer.wait_for(lambda: len(federation.observer.records) > 1)
        assert {path.name for path in (folder / "updates").glob("*.f32")} >= {"alice.f32"}
        assert folder.stat().st_mode & 0o077 == 0
        federation.finish()
        simulated = federation.compare_with_simulation()
        assert all(len(final.params) > 500_000 for final in simulated.finals.values())
    assert not folder.exists()


def test_the_disk_is_used_where_updates_would_fill_the_memory() -> None:
    study = large(20_000, arms=["fedavg", "scaffold"])
    # three hospitals' updates of 100,002 float32, each with a control variate of the same size
    enough = int(3 * 2 * 4 * 100_002 / MEMORY_SHARE)
    assert need_disk(enough - 100, study)
    assert not need_disk(enough + 100, study)
    assert need_disk(enough + 100, study, study)
