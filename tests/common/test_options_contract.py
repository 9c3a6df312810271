"""The registry's promises hold with a method's options too, not only with its defaults."""

from pathlib import Path
from typing import Any

import pytest
import torch

from erosion.common.algorithms import REGISTRY
from erosion.common.algorithms.base import Algorithm
from erosion.common.rounds import checkpoint
from erosion.common.rounds.one_round import start
from tests.support.contexts import CONTEXT
from tests.support.registry_cohorts import (
    DIM,
    PEERS,
    USER,
    advanced,
    after_rounds,
    cohort,
    same,
)

OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("weight_erosion", {"distance_penalty": "auto", "weighting": "samples"}),
    ("weight_erosion", {"distance": "cosine", "cone": "warn", "cone_angle": 1}),
    ("weighted_gradient", {"alpha": 0.5}),
    ("weighted_gradient", {"alpha": 1.0}),
    ("bias_correction", {"bias": "per_hospital", "warm_up": True}),
    ("bias_correction", {"alpha": 0.5, "beta": 0.1}),
    ("multi_krum", {"num_byzantine": 0, "num_selected": 2}),
    ("geometric_median", {"weighting": "samples"}),
    ("centered_clipping", {"centre": "own", "steps": 3}),
]
OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    ("weighted_gradient", {"server_optimizer": "momentum"}),
    ("bias_correction", {"bias": "per_hospital", "server_optimizer": "adam"}),
]


def named(option: tuple[str, dict[str, Any]]) -> str:
    name, parameters = option
    return f"{name}-{'-'.join(f'{key}={value}' for key, value in parameters.items())}"


every_option = pytest.mark.parametrize("option", OPTIONS + OPTIMIZERS, ids=named)


def built(option: tuple[str, dict[str, Any]]) -> Algorithm[Any]:
    name, parameters = option
    return REGISTRY[name].model_validate(parameters).build(CONTEXT)


@every_option
def test_a_resumed_run_equals_an_uninterrupted_one(
    option: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    algorithm = built(option)
    fresh = run = start(algorithm, torch.zeros(DIM))
    for _ in range(3):
        run = advanced(algorithm, run)
    file = tmp_path / "checkpoint.safetensors"
    checkpoint.save(file, run, arm="x", study_digest="y")
    resumed = checkpoint.load(file, fresh, arm="x", study_digest="y")
    assert same(resumed, run)
    assert same(advanced(algorithm, resumed), advanced(algorithm, run))


@every_option
def test_an_absent_hospital_keeps_its_weight_and_a_run_goes_on_alone(
    option: tuple[str, dict[str, Any]],
) -> None:
    algorithm = built(option)
    run = start(algorithm, torch.zeros(DIM))
    for _ in range(2):
        run = advanced(algorithm, run)
    without = advanced(algorithm, run, PEERS[0])
    assert without.weights[PEERS[0]] == run.weights[PEERS[0]]
    alone = advanced(algorithm, without, *PEERS)
    back = advanced(algorithm, alone)
    assert bool(torch.isfinite(back.params).all())


@every_option
def test_a_late_joiner_gets_a_finite_weight(option: tuple[str, dict[str, Any]]) -> None:
    algorithm = built(option)
    early, late = PEERS[:2], PEERS[2]
    step = algorithm.update(after_rounds(algorithm, 3, *early), cohort(4, *early, late))
    assert torch.isfinite(torch.tensor(step.weights[late]))
    assert bool(torch.isfinite(step.delta).all())


@every_option
def test_the_order_of_arrival_does_not_matter(option: tuple[str, dict[str, Any]]) -> None:
    algorithm = built(option)
    forward = backward = algorithm.init(DIM)
    for number in (1, 2, 3):
        one = algorithm.update(forward, cohort(number, *PEERS))
        other = algorithm.update(backward, cohort(number, *reversed(PEERS)))
        assert same(one, other)
        forward, backward = one.state, other.state


@pytest.mark.parametrize("option", OPTIONS, ids=named)
def test_without_peers_it_is_local_training(option: tuple[str, dict[str, Any]]) -> None:
    algorithm = built(option)
    state = algorithm.init(DIM)
    for number in (1, 2, 3):
        alone = cohort(number)
        step = algorithm.update(state, alone)
        state = step.state
        torch.testing.assert_close(step.delta, alone.own.delta)


@pytest.mark.parametrize("option", OPTIONS, ids=named)
def test_identical_updates_are_a_fixed_point(option: tuple[str, dict[str, Any]]) -> None:
    algorithm = built(option)
    state = algorithm.init(DIM)
    common = torch.tensor([1.0, -2.0, 0.5, 0.0, 3.0])
    for number in (1, 2, 3):
        step = algorithm.update(state, cohort(number, *PEERS, delta=common))
        state = step.state
        torch.testing.assert_close(step.delta, common)
        assert step.weights[USER] in (0.0, 1.0)
