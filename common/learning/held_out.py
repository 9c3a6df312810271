"""Patients of the training part that a method sets aside, to choose between models."""

from collections.abc import Sequence
from math import floor

import torch
from torch import Tensor


def hold_out(
    strata: Tensor,
    share: float,
    generator: torch.Generator,
    patients: Tensor | None = None,
    fewest: int = 1,
) -> tuple[Tensor, Tensor]:
    """Split rows at random, patient by patient: indices of the rest and of those held out.

    `strata`: (patients,) by the patients' numbers, ascending. `patients`: (n,) the number of each
    row's patient; None: each row is another. About `share` of each stratum's patients is held out,
    and at least one of two or more; a stratum never loses all its patients. Each part has `fewest`
    patients at least: a model that is trained on a few, or measured on them, gives these away.
    Where that cannot be, both parts are all rows.
    """
    numbers = torch.arange(len(strata))
    if patients is not None:
        _, numbers = torch.unique(patients, return_inverse=True)
    every = torch.arange(len(numbers))
    members = [torch.nonzero(strata == s).flatten() for s in sorted(set(strata.tolist()))]
    counts = _counts([len(each) for each in members], share, fewest)
    if counts is None:
        return every, every
    held_out = torch.zeros(len(strata), dtype=torch.bool)
    for each, count in zip(members, counts, strict=True):
        held_out[each[torch.randperm(len(each), generator=generator)][:count]] = True
    held_out = held_out[numbers]
    return torch.nonzero(~held_out).flatten(), torch.nonzero(held_out).flatten()


def held_out_count(num_patients: int, share: float) -> int:
    """How many of a stratum's patients are held out."""
    if num_patients < 2:
        return 0
    return min(max(floor(share * num_patients + 0.5), 1), num_patients - 1)


def num_left(num_patients: Sequence[int], share: float, fewest: int) -> int:
    """How many are in the rest of `hold_out`, of so many patients of each stratum."""
    return sum(num_patients) - sum(_counts(num_patients, share, fewest) or [])


def _counts(num_patients: Sequence[int], share: float, fewest: int) -> list[int] | None:
    """How many of each stratum's are held out; None: there are too few for two parts.

    The share is one of a grid, so that of two shares the parts are the same or differ in `fewest`
    patients, whatever is rounded in the strata: what is left of two answers is about no fewer.
    """
    total = sum(num_patients)
    step = (fewest + len(num_patients)) / total
    for number in range(max(1, round(share / step)), 0, -1):
        found = [held_out_count(each, number * step) for each in num_patients]
        if fewest <= sum(found) <= total - fewest:
            return found
    return None
