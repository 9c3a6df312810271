"""Whatever a method answers, the exact number of a hospital's patients is not in it."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from erosion.simulation.simulator import simulate, timeless
from erosion_client.training.hospital import Hospital
from erosion_common.algorithms import REGISTRY
from erosion_common.errors import Refusal
from erosion_common.protocol.messages import EvaluateRequest, StepResult, TrainRequest, TrainResult
from erosion_common.study.study import Study
from tests.support.small_study import TASK, make_site, make_study

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


@pytest.mark.parametrize("num", [57, 58, 61])
def test_an_update_tells_how_many_mini_batches_a_pass_has(tmp_path: Path, num: int) -> None:
    """What docs/threat-model.md admits: a weight that no patient moves shrinks once a batch."""
    rate, decay = 0.1, 0.01
    study = make_study(
        task={**TASK, "features": [{"name": "sex", "categories": ["f", "m", "neither"]}]},
        training={"epochs": 1, "batch_size": 2, "learning_rate": rate, "weight_decay": decay},
    )
    site = make_site(tmp_path, table(num, 1), name="b", file="b.csv", limits={"min_cell": 10})
    start = torch.ones(max(place.stop for place in study.build_context.layout().values()))
    update = Hospital(site).train(TrainRequest(study, "fedavg", 1, start, None)).delta
    # Of a category but the first there is a column; nobody here is in the last.
    shrunk = math.log1p(float(update[1])) / math.log1p(-rate * decay)
    assert round(shrunk) == num // 2  # one that is left over is in a batch of three


def test_numbers_are_found_wherever_they_stand() -> None:
    assert set(numbers({"a": [1, {"b": 2.5}], "c": True, "d": "57"})) == {1, 2.5}


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


def test_refusals_by_the_limit_on_steps_tell_how_many_there_are_now(tmp_path: Path) -> None:
    """What docs/threat-model.md admits, of patients before the first training: a pass of one batch
    is one step, and nobody need take it."""
    site = make_site(tmp_path, table(57, 1), name="b", file="b.csv", limits={"min_cell": 10})

    def is_refused(batch_size: int) -> bool:
        training = {"epochs": 1, "batch_size": batch_size}
        try:
            Hospital(site).describe(make_study(name=f"of-{batch_size}", training=training))
        except Refusal:
            return True
        return False

    assert [size for size in range(50, 64) if is_refused(size)] == [*range(57, 64)]
