"""Limits on a sum's weights, so that nobody can take it apart, and the check that it fits.

A hospital may claim to be nearer than it is, and then counts more than it should. With the true
distances |M - W g_0| is at most sum f_i d_i |g_0|, by the triangle inequality.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from erosion_common.sealed.keys import Part
from erosion_common.sealed.masks import BUCKETS, chunks, is_exact, norm_of
from erosion_common.sealed.shares import threshold

REAL_SHARE = 0.1  # of the largest weight: with less a hospital hides nobody, and does not count
ALLIES = 1  # members that may take off what they know of a sum


@dataclass(frozen=True, slots=True)
class SumRules:
    """A site's own, from its limits; the coordinator keeps to the defaults.

    They are about the rest of a sum after any one of its hospitals, which works with the
    coordinator and knows its own update, has taken that off.
    """

    min_summed: int = 3  # that are left: of 2 each sees the other
    largest_share: float = 0.5  # of the largest weight in the rest
    known: frozenset[str] | None = None  # who may be counted on to hide others; None: everybody

    @property
    def parts(self) -> tuple[Part, ...]:
        """What goes into a hash of them."""
        known = ("all",) if self.known is None else ("known", *sorted(self.known))
        return (self.min_summed, float(self.largest_share), *known)

    @property
    def fewest(self) -> int:
        """Hospitals in a sum."""
        return self.min_summed + ALLIES

    def among(self, names: Collection[str]) -> "SumRules":
        """Return the same where only those are there, so that no others need be named."""
        return self if self.known is None else replace(self, known=self.known.intersection(names))

    def problem_with(self, weights: Mapping[str, float]) -> str | None:
        """Return why a sum with these weights would show too much of one hospital, or None.

        Hospitals that are not known here may be the coordinator's own: what it knows it can take
        off, so the rest of the sum must suffice.
        """
        if (problem := self._problem_with(weights)) or self.known is None:
            return problem
        problem = self._problem_with({n: w for n, w in weights.items() if n in self.known})
        return problem and f"of those in limits.summed_with, {problem}"

    def problem_with_holders(self, names: Collection[str]) -> str | None:
        """Return why no secret may be shared out among these hospitals, or None.

        A group of them large enough to take this one's masks off could do so without any sum if the
        others got two different views.
        """
        if self.known is None:
            return None
        enough = 2 * threshold(len(names)) - len(names)
        if (strangers := len(set(names) - self.known)) < enough:
            return None
        return (
            f"{strangers} of its {len(names)} hospitals are not in limits.summed_with, and"
            f" {enough} together with the coordinator could take this site's masks off"
        )

    def _problem_with(self, weights: Mapping[str, float]) -> str | None:
        if not all(0 <= weight <= 1 for weight in weights.values()):
            return "a weight outside of 0 to 1"
        total = sum(weights.values())
        if total > 1 + 1e-9:
            return f"weights that add up to {total:g}"
        ordered = sorted(weights.values(), reverse=True)
        largest = ordered[0] if ordered else 0.0
        num_real = sum(weight >= REAL_SHARE * largest > 0 for weight in ordered)
        if num_real < self.fewest:
            return (
                f"{num_real} hospitals in the sum with a tenth of the largest weight or more;"
                f" without any one of them limits.min_summed = {self.min_summed} must be left"
            )
        # The largest part of the rest is largest where the second largest is taken off.
        left = total - sum(ordered[1 : 1 + ALLIES])
        if largest > self.largest_share * left * (1 + 1e-9):
            return (
                f"without one other, one hospital has {largest / left:.3g} of the sum;"
                f" limits.largest_share = {self.largest_share:g}"
            )
        return None

    def capped(self, weights: Mapping[str, float]) -> dict[str, float] | None:
        """Return the same weights with the largest lowered until they may be summed, or None.

        Those that are lowered get the same weight: as much as the rules allow.
        """
        order = sorted((n for n in weights if weights[n] > 0), key=lambda n: -weights[n])
        for num_lowered in range(len(order)):
            below = [weights[name] for name in order[num_lowered:]]
            cap = self._cap(num_lowered, below)
            if cap >= below[0] * (1 - 1e-12):
                lowered = {n: min(weights[n], cap) for n in order[:num_lowered]}
                capped = {**weights, **lowered}
                return None if self.problem_with(capped) else capped
        return None

    def _cap(self, num_lowered: int, below: Sequence[float]) -> float:
        """Return the largest weight that `num_lowered` may have with these smaller ones."""
        share, others = self.largest_share, sum(below)
        if num_lowered == 0:
            return share * (others - sum(below[1:2]))
        if num_lowered == 1:
            return share * (others - below[0]) / (1 - share)
        return share * others / (1 - share * (num_lowered - 1))


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
    """Return whether the sum is no longer than updates of those lengths allow."""
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
    """Check the sum `total` of hospitals with these `weights`; `rounding` is its error's norm."""
    share = sum(weights.values())
    square = 0.0
    for place in chunks(len(own)):  # both vectors are long: no copy of either is made
        apart = total[place] - share * own[place].astype(np.float64)
        square += float(np.dot(apart, apart))
    claimed = sum(weight * distances[name] for name, weight in weights.items()) * own_norm
    slack = EXACT_SLACK if is_exact(len(own)) else SKETCH_SLACK
    return SumCheck(math.sqrt(square), slack * claimed + rounding)
