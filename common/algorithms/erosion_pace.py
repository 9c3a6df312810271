"""A distance penalty that aims the erosion at a share of the rounds (after Gengler et al. 2020).

Hospital i's weight is gone once p_d times its path, the sum over rounds of (1 + p_s k_i) d_i, is 1.
If distances stay as they are in a first round, its path up to round s is known in advance. So p_d
is one over the median hospital's path up to the round that is aimed at, and the mean over the first
rounds, because a single round's distances are noisy.
"""

from collections.abc import Sequence
from statistics import fmean, median

from erosion.common.aggregation.cohort import Update
from erosion.common.algorithms.erosion_repeats import SizeUnit, repeats

FIRST_ROUNDS = 3  # whose distances are looked at


def median_path(
    peers: Sequence[Update],
    distances: Sequence[float],
    *,
    last_round: int,
    size_penalty: float,
    size_unit: SizeUnit,
    batch_size: int | None,
) -> float:
    """The median over hospitals of the path from round 1 to `last_round` at these distances."""
    paths = [
        distance
        * sum(
            1
            + size_penalty
            * repeats(size_unit, update, batch_size, before, before * update.samples_seen)
            for before in range(last_round)
        )
        for update, distance in zip(peers, distances, strict=True)
    ]
    return median(paths)


def penalty(paths: Sequence[float]) -> float:
    """p_d from the median paths of the first rounds."""
    typical = fmean(paths)
    return 1 / typical if typical else 0.0  # hospitals at no distance need no erosion
