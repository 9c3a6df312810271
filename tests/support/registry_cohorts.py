"""Cohorts of four hospitals for every algorithm of the registry."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache, partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from erosion_common.aggregation.cohort import HospitalName, MemoryCohort, Update
from erosion_common.algorithms import REGISTRY
from erosion_common.algorithms.base import Algorithm
from erosion_common.learning.models import Logistic, Mlp, parameter_layout
from erosion_common.rounds.records import Absence, Answer, RunState
from experiments.benchmarks.harness import advance
from tests.support.contexts import CONTEXT

DIM = 5
USER = "user"
PEERS = ("cedars", "birch", "alder")
HOSPITALS = (USER, *PEERS)


def model_for(name: str) -> dict[str, Any]:
    """The simplest model that the method takes."""
    problem = REGISTRY[name](algorithm=name).problem_with_model
    for model in (Logistic(), Mlp(), Mlp(normalisation="site")):
        if problem(partial(parameter_layout, model, (1,), 2)) is None:
            break
    return model.model_dump(mode="json")


def built(name: str, parameters: Mapping[str, Any] = MappingProxyType({})) -> Algorithm[Any]:
    """The coordinator's part, of which the rounds here have the exchange that brings updates."""
    arm = REGISTRY[name].model_validate({"algorithm": name, **parameters})
    return replace(arm.build(CONTEXT), exchanges=None)


@cache
def attachment_sizes() -> Mapping[str, int]:
    """Of every method's updates together."""
    each = (arm(algorithm=name).attachment_sizes(DIM) for name, arm in REGISTRY.items())
    return {name: length for sizes in each for name, length in sizes.items()}


def update(agent: HospitalName, round_number: int, delta: Tensor | None = None) -> Update:
    """An update that depends on the hospital and the round alone."""
    seed = 100 * round_number + HOSPITALS.index(agent)
    generator = torch.Generator().manual_seed(seed)
    random = torch.randn(DIM, generator=generator)
    attachments = {
        name: torch.rand(length, generator=generator) for name, length in attachment_sizes().items()
    }
    return Update(
        agent,
        round_number,
        1.0 + 0.3 * random if delta is None else delta.clone(),
        num_samples=10 * (1 + HOSPITALS.index(agent)),
        samples_seen=8,
        attachments=attachments,
    )


def cohort(round_number: int, *peers: HospitalName, delta: Tensor | None = None) -> MemoryCohort:
    return MemoryCohort(
        update(USER, round_number, delta),
        {peer: update(peer, round_number, delta) for peer in peers},
    )


def after_rounds(algorithm: Algorithm[Any], rounds: int, *peers: HospitalName) -> Any:
    state = algorithm.init(DIM)
    for round_number in range(1, rounds + 1):
        state = algorithm.update(state, cohort(round_number, *peers)).state
    return state


def same(left: Any, right: Any) -> bool:
    """Equality that looks into tensors, maps, lists and dataclasses."""
    if isinstance(left, Tensor):
        return isinstance(right, Tensor) and torch.equal(left, right)
    if isinstance(left, Mapping):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if is_dataclass(left) and not isinstance(left, type):
        return type(left) is type(right) and all(
            same(getattr(left, field.name), getattr(right, field.name)) for field in fields(left)
        )
    return bool(left == right)


def advanced(algorithm: Algorithm[Any], run: RunState, *absent: HospitalName) -> RunState:
    number = run.round + 1
    answers: dict[HospitalName, Answer] = {
        agent: Absence("was not connected") if agent in absent else update(agent, number)
        for agent in HOSPITALS
    }
    after, record = advance(run, algorithm, answers, arm="x", user=USER, quorum=1)
    assert record.outcome == "done"
    return after
