"""Patients of the training part that a method sets aside, to choose between models."""

from math import floor

import torch
from torch import Tensor


def hold_out(
    strata: Tensor, share: float, generator: torch.Generator, patients: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Split rows by their strata (n,) at random: indices of the rest and of those held out.

    `patients`: (n,) equal for rows of one patient, which stay together, in the last stratum of
    theirs; None: each row is another patient. `share` of each stratum's patients is held out,
    rounded, and at least one of two or more; a stratum never loses all its patients.
    """
    numbers = torch.arange(len(strata))
    if patients is not None:
        _, numbers = torch.unique(patients, return_inverse=True)
        num_patients = int(numbers.max()) + 1
        strata = strata.new_zeros(num_patients).scatter_reduce(
            0, numbers, strata, "amax", include_self=False
        )
    held_out = torch.zeros(len(strata), dtype=torch.bool)
    for stratum in sorted(set(strata.tolist())):
        members = torch.nonzero(strata == stratum).flatten()
        members = members[torch.randperm(len(members), generator=generator)]
        held_out[members[: held_out_count(len(members), share)]] = True
    held_out = held_out[numbers]
    return torch.nonzero(~held_out).flatten(), torch.nonzero(held_out).flatten()


def held_out_count(num_patients: int, share: float) -> int:
    """How many of a stratum's patients are held out."""
    if num_patients < 2:
        return 0
    return min(max(floor(share * num_patients + 0.5), 1), num_patients - 1)
