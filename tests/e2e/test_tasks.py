"""A study of each outcome over real gRPC, held to a simulation."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from erosion_client.evaluation.predict import predict
from tests.support.federation import Federation, small_study

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
def test_a_deployment_equals_a_simulation_and_ends_with_a_verdict(
    tmp_path: Path, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = {"kind": "tabular", "outcome": outcome, "features": ["age", "dose"], **TASKS[outcome]}
    study = small_study(
        task=task,
        arms={"weight_erosion": {"distance_penalty": 0.1}, "personal_intercept": {}, "local": {}},
        training={"steps": 3, "batch_size": 8, "learning_rate": 0.1},
    )
    with Federation(study, tmp_path) as federation:

        def site_file(name: str, index: int | None = None) -> Path:
            path = original(name, index)
            write_patients(path.parent / "data.csv", name)
            return path

        original = federation.site_file
        monkeypatch.setattr(federation, "site_file", site_file)
        for name in study.hospitals:
            federation.start_site(name)
        federation.start()
        result = federation.finish()
        federation.compare_with_simulation()
        folder = federation.run_folder
    assert result.outcome == outcome
    assert result.comparison is not None
    assert result.base_rate is not None
    assert result.base_rate[study.task.verdict_metric] > 0
    assert result.verdict.text
    assert "Base rate" in folder.report.read_text()
    data, output = tmp_path / "alice" / "data.csv", tmp_path / "predictions.csv"
    predict(folder.path, data, output)
    with output.open() as file:
        predicted = list(csv.DictReader(file))
    assert len(predicted) == 60
    assert set(COLUMNS[outcome]) <= set(predicted[0])
