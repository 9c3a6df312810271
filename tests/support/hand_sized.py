"""Cohorts that are small enough to be worked out by hand."""

from typing import Any

import torch

from erosion_common.aggregation.cohort import MemoryCohort, Update
from erosion_common.algorithms.base import Algorithm, Step


def update(agent: str, *delta: float, num_samples: int = 10, samples_seen: int = 10) -> Update:
    """One hospital's update of round 1."""
    return Update(agent, 1, torch.tensor(delta, dtype=torch.float32), num_samples, samples_seen)


def cohort(own: Update, *others: Update) -> MemoryCohort:
    """The user's update and the others'."""
    return MemoryCohort(own, {other.agent: other for other in others})


def of_values(*values: float) -> MemoryCohort:
    """One parameter; the user's value, then those of hospitals a, b, c, ..."""
    own, *others = values
    names = "abcdefghijklmnopqrstuvwxyz"
    return cohort(update("own", own), *(update(n, v) for n, v in zip(names, others, strict=False)))


def course(algorithm: Algorithm[Any], *cohorts: MemoryCohort) -> list[Step[Any]]:
    """The steps of as many rounds, from a fresh state."""
    state = algorithm.init(len(cohorts[0].own.delta))
    steps = []
    for each in cohorts:
        steps.append(algorithm.update(state, each))
        state = steps[-1].state
    return steps
