"""Methods whose part at the hospital is more than local training, over real gRPC."""

import csv
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from erosion.simulation.simulator import simulate
from erosion_common.rounds import checkpoint
from tests.support.federation import Federation, small_study
from tests.support.patience import PATIENCE

# One of each kind: with two exchanges in a round, with attachments, with state at the site, with
# tensors enclosed for everyone or for the user, with several models, and with parameters that never
# leave.
ARMS: dict[str, Any] = {
    "ensemble": {},
    "evidence_erosion": {},
    "ditto": {},
    "scaffold": {},
    "fedlin": {},
    "fedfomo": {},
    "own_bias": {"algorithm": "weight_erosion", "own_parameters": ["output_bias"]},
}


def test_a_deployment_and_a_simulation_agree_and_the_result_predicts(tmp_path: Path) -> None:
    study = small_study(arms=ARMS, rounds=3)
    with Federation(study, tmp_path) as federation:
        for name in study.hospitals:
            federation.start_site(name)
        federation.start()
        federation.finish()
        simulated = federation.compare_with_simulation()
        for record in federation.observer.records:
            steps = [step.step for step in record.steps]
            assert steps == (["gradient", "train"] if record.arm == "fedlin" else [])
            for step in record.steps:
                assert all((entry.bytes_received or 0) > 0 for entry in step.hospitals.values())
        folder = federation.run_folder
        _check_prediction(folder.path, federation.folder / "alice" / "data.csv")
    saved = checkpoint.load_model(folder.model)
    assert saved.shape == (3, 6)  # a model of each hospital
    torch.testing.assert_close(saved, simulated.personal["ensemble"])
    assert set(simulated.personal) == set(ARMS) - {"scaffold", "fedlin"}


def test_settings_are_chosen_alike_in_a_deployment_and_in_a_simulation(tmp_path: Path) -> None:
    penalties = [{"distance_penalty": penalty} for penalty in (0.001, 1.0)]
    study = small_study(
        arms={"weight_erosion": {}, "local": {}},
        rounds=3,
        selection={"folds": 2, "candidates": {"weight_erosion": penalties}},
    )
    with Federation(study, tmp_path) as federation:
        for name in study.hospitals:
            federation.start_site(name)
        federation.start()
        result = federation.finish()
        simulated = simulate(study, {name: federation.hospital(name) for name in study.hospitals})
        num_trial_rounds = len(federation.run_folder.trials.read_text().splitlines())
    assert num_trial_rounds == 2 * (2 + 1) * 4  # folds, candidates of both arms, rounds and one
    for arm, choice in simulated.choices.items():
        selected = result.arms[arm].selected
        assert selected is not None
        assert (selected.settings, selected.rounds) == (choice.settings, choice.rounds)
        assert selected.loss == pytest.approx(choice.loss)
        assert result.arms[arm].rounds == choice.rounds
        assert result.arms[arm].metrics == simulated.evaluation.arms[arm]


def _check_prediction(run_folder: Path, patients: Path) -> None:
    command = [sys.executable, "-m", "erosion", "predict", str(run_folder), str(patients)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)
    with patients.open() as file:
        truth = [row["ill"] for row in csv.DictReader(file)]
    predicted = [row["predicted"] for row in csv.DictReader(done.stdout.splitlines())]
    right = sum(a == b for a, b in zip(truth, predicted, strict=True))
    assert right > 0.75 * len(truth)
