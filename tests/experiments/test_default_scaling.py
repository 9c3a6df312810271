"""A table is scaled without being asked to: by all hospitals' training patients, and rightly."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from erosion.simulation.simulator import simulate
from erosion_client.training.hospital import Hospital
from erosion_common.study.study import Study
from tests.support.small_study import make_site

FEATURES = [{"name": "income", "range": [0, 1e6]}, {"name": "lactate", "range": [0, 20]}]


def write(folder: Path, name: str, mean: float, seed: int) -> Hospital:
    """Sixty patients; who earns less than the hospital's mean is ill, mostly."""
    draw = np.random.default_rng(seed)
    income = draw.normal(mean, 20_000, 60).round(2)
    ill = (income + draw.normal(0, 10_000, 60) < mean).astype(int)
    lines = [
        f"{i},{x:.3f},{y}" for i, x, y in zip(income, draw.uniform(1, 3, 60), ill, strict=True)
    ]
    text = "income,lactate,ill\n" + "\n".join(lines) + "\n"
    return Hospital(make_site(folder, text, name=name, file=f"{name}.csv"))


def three(folder: Path) -> dict[str, Hospital]:
    means = {"a": 100_000.0, "b": 110_000.0, "c": 95_000.0}
    return {name: write(folder, name, mean, i) for i, (name, mean) in enumerate(means.items())}


def study_of(**changes: Any) -> Study:
    raw = {
        "name": "unscaled",
        "user": "a",
        "hospitals": ["a", "b", "c"],
        "rounds": 10,
        "task": {"kind": "tabular", "target": "ill", "classes": ["0", "1"], "features": FEATURES},
        "model": {"name": "logistic"},
        "training": {"epochs": 1, "batch_size": 8, "learning_rate": 0.1},
        "arms": ["fedavg", "local"],
        "evaluation": {"bootstrap": 100, "references": []},
    }
    return Study.model_validate({**raw, **changes})


def test_a_study_that_says_nothing_of_scaling_scales_by_everybodys_training_patients(
    tmp_path: Path,
) -> None:
    hospitals = three(tmp_path)
    outcome = simulate(study_of(), hospitals)
    scaling = outcome.evaluation.scaling
    assert scaling is not None
    sums = [hospitals[name].describe(study_of()).sums for name in hospitals]
    counts = [s.count[0] for s in sums if s is not None]
    assert counts == [42, 60, 60]  # the user's test patients have no part in it
    mean = sum(s.total[0] for s in sums if s is not None) / 162
    assert scaling.mean[0] == pytest.approx(mean)
    rows = np.loadtxt(tmp_path / "b.csv", delimiter=",", skiprows=1)
    assert sums[1] is not None
    # What leaves a site is not exact to the patient.
    assert sums[1].total[0] == pytest.approx(rows[:, 0].sum(), rel=0.01)
    base_rate = outcome.evaluation.base_rate
    assert base_rate is not None
    for arm, found in outcome.evaluation.arms.items():
        assert found["log_loss"] < base_rate["log_loss"], arm


def test_without_scaling_the_same_study_is_worse_than_the_base_rate(tmp_path: Path) -> None:
    """Why it is the default: six arms once had a log loss of 1.019, the base rate one of .527."""
    hospitals = three(tmp_path)
    evaluation = simulate(study_of(scaling="none"), hospitals).evaluation
    assert evaluation.base_rate is not None
    for found in evaluation.arms.values():
        assert found["log_loss"] > evaluation.base_rate["log_loss"]
