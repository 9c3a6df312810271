"""The check that a sum fits the distances that were claimed for it.

A hospital may claim to be nearer than it is, and then counts more than it should. With the true
distances |M - W g_0| is at most sum f_i d_i |g_0|, by the triangle inequality.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from erosion.common.sealed.distances.sketch import BUCKETS, is_exact
from erosion.common.sealed.masks.mask import chunks, norm_of

EXACT_SLACK = 1.001

# Where no few values make up most of v's length, the k sums of its sketch are nearly normal, and
# |S v|^2 is |v|^2 / k times a chi-square with k degrees of freedom. All sketches have one seed: of
# updates that differ from the user's in one direction, all distances come out too short by the same
# factor, and a sum of many is no safer than one. The slack is sqrt(k / q), for the q that this
# chi-square is below once in 10^9 times: 142.66 for k = 256.
SKETCH_SLACK = math.sqrt(BUCKETS / 142.66)


@dataclass(frozen=True, slots=True)
class SumCheck:
    """Both sides of the inequality."""

    apart: float  # |M - W g_0|
    at_most: float  # sum f_i d_i |g_0|, with what sketch and rounding may add
    claims: Literal["distances", "lengths"] = "distances"  # with lengths: |M|, and sum f_i |g_i|

    @property
    def holds(self) -> bool:
        """Whether the sum can be one of updates at those distances."""
        return self.apart <= self.at_most


def check_length(
    total: NDArray[np.floating[Any]],
    weights: Mapping[str, float],
    lengths: Mapping[str, float],
    *,
    rounding: float,
) -> SumCheck:
    """Whether the sum is no longer than updates of those lengths allow."""
    claimed = sum(weight * lengths[name] for name, weight in weights.items())
    return SumCheck(norm_of(total), EXACT_SLACK * claimed + rounding, "lengths")


def check_sum(
    total: NDArray[np.floating[Any]],
    own: NDArray[np.float32],
    weights: Mapping[str, float],
    distances: Mapping[str, float],
    *,
    own_norm: float,
    rounding: float,
) -> SumCheck:
    """`weights` are those of the hospitals in the sum `total`; `rounding` is its error's norm."""
    share = sum(weights.values())
    square = 0.0
    for place in chunks(len(own)):  # both vectors are long: no copy of either is made
        apart = total[place] - share * own[place].astype(np.float64)
        square += float(np.dot(apart, apart))
    claimed = sum(weight * distances[name] for name, weight in weights.items()) * own_norm
    slack = EXACT_SLACK if is_exact(len(own)) else SKETCH_SLACK
    return SumCheck(math.sqrt(square), slack * claimed + rounding)
