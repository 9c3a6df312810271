"""Patients of the training part that a method sets aside, to choose between models."""

from math import floor

import torch
from torch import Tensor


def hold_out(strata: Tensor, share: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Split patients by their strata (n,) at random: indices of the rest and of those held out.

    `share` of each stratum is held out, rounded, and at least one patient of two or more; a stratum
    never loses all its patients.
    """
    held_out = torch.zeros(len(strata), dtype=torch.bool)
    for stratum in sorted(set(strata.tolist())):
        members = torch.nonzero(strata == stratum).flatten()
        members = members[torch.randperm(len(members), generator=generator)]
        held_out[members[: held_out_count(len(members), share)]] = True
    return torch.nonzero(~held_out).flatten(), torch.nonzero(held_out).flatten()


def held_out_count(num_patients: int, share: float) -> int:
    """How many of a stratum's patients are held out."""
    if num_patients < 2:
        return 0
    return min(max(floor(share * num_patients + 0.5), 1), num_patients - 1)
