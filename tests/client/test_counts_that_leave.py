"""Whatever a method answers, the exact number of a hospital's patients is not in it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from erosion.simulation.simulator import simulate, timeless
from erosion_client.training.hospital import Hospital
from erosion_common.algorithms import REGISTRY
from erosion_common.protocol.messages import EvaluateRequest, StepResult, TrainRequest, TrainResult
from erosion_common.study.study import Study
from tests.support.small_study import make_site, make_study

PEERS_PATIENTS = 57  # no multiple of the smallest cell


def table(num: int, seed: int) -> str:
    draws = np.random.default_rng(seed)
    lines = [
        f"{age:.3f},{'fm'[number % 2]},{int(age > 50)}"
        for number, age in enumerate(draws.uniform(20, 80, num).tolist())
    ]
    return "\n".join(["age,sex,ill", *lines]) + "\n"


class Listening(Hospital):
    """Remembers the headers that it sent."""

    headers: list[dict[str, Any]]

    def answer(self, request: TrainRequest) -> TrainResult | StepResult:
        result = super().answer(request)
        self.headers.append(result.header.model_dump())
        return result


def numbers(value: object) -> Iterator[float]:
    """Every number in what was sent."""
    if isinstance(value, dict):
        for inner in value.values():
            yield from numbers(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from numbers(inner)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def study_of(algorithm: str, training: dict[str, object]) -> Study:
    """Of three hospitals, the fewest that every method is for."""
    return make_study(
        hospitals=["a", "b", "c"],
        arms={algorithm: {}},
        rounds=1 if "gems" in algorithm else 2,
        training=training,
        scaling="local",
        model={"name": "mlp", "hidden": [4]} if "network" in algorithm else {"name": "logistic"},
        evaluation={"test_share": 0.4, "bootstrap": 100},
    )


STEPS: dict[str, object] = {"steps": 3, "batch_size": 8, "learning_rate": 0.05}
PASSES: dict[str, object] = {"epochs": 2, "batch_size": 8, "learning_rate": 0.05}


@pytest.mark.parametrize("training", [STEPS, PASSES], ids=["steps", "passes"])
@pytest.mark.parametrize("algorithm", sorted(REGISTRY))
def test_no_answer_tells_how_many_patients_there_are(
    tmp_path: Path, algorithm: str, training: dict[str, object]
) -> None:
    study = study_of(algorithm, training)
    patients = {"a": 90, "b": PEERS_PATIENTS, "c": 68}
    sites = {
        name: make_site(
            tmp_path, table(num, seed), name=name, file=f"{name}.csv", limits={"min_cell": 10}
        )
        for seed, (name, num) in enumerate(patients.items(), start=1)
    }
    listening = Listening(sites["b"])
    listening.headers = []
    others = {"a": Hospital(sites["a"]), "c": Hospital(sites["c"])}
    simulate(study, {**others, "b": listening}, clock=timeless)
    if not study.arms[algorithm].user_only:
        assert listening.headers
    told = {number for header in listening.headers for number in numbers(header)}
    assert not told & {PEERS_PATIENTS * times for times in (1, 2)}


def test_no_figure_of_a_test_part_tells_how_few_are_without_the_event(tmp_path: Path) -> None:
    """Of 49 patients whose number is told, 41 would be as good as the other eight."""
    draws = np.random.default_rng(3)
    tested = [(1, "test")] * 41 + [(0, "test")] * 8
    trained = [(number % 2, "train") for number in range(60)]
    lines = [
        f"{draws.normal():.4f},{draws.normal():.4f},{draws.uniform(1, 90):.3f},{event},{part}"
        for event, part in tested + trained
    ]
    text = "\n".join(["age,dose,months,event,part", *lines]) + "\n"
    task = {
        "kind": "tabular",
        "outcome": "survival",
        "target": {"time": "months", "event": "event"},
        "cut_points": [12, 24, 48],
        "features": ["age", "dose"],
    }
    evaluation = {"bootstrap": 100, "split_column": "part"}
    study = make_study(task=task, evaluation=evaluation, arms=["fedavg", "local"])
    parameters = dict.fromkeys(study.arms, torch.zeros(9))
    user = Hospital(make_site(tmp_path, text, limits={"min_cell": 10}))
    told = user.evaluate(EvaluateRequest(study, parameters, None)).header
    assert told.comparison is not None
    assert told.comparison.num_patients == 49
    assert not {8.0, 41.0} & set(numbers(told.model_dump()))
    assert told.comparison.smallest_class == 5
