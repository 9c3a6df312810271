"""What the coordinator computes in a sealed round, and the check that a sum fits what was claimed.

A hospital may claim to be nearer than it is, and then counts more than it should. With the true
distances |M - W g_0| is at most sum f_i d_i |g_0|, by the triangle inequality.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from erosion_common.sealed.distance import Asker
from erosion_common.sealed.keys import private_half
from erosion_common.sealed.masks import (
    BUCKETS,
    Words,
    apply_masks,
    decode_sum,
    is_exact,
    scale_for,
    wide_chunks,
)
from erosion_common.sealed.phases import Roster, RoundContext, View
from erosion_common.sealed.power_residues import ResiduePrivateKey
from erosion_common.sealed.roster import (
    pair_mask,
    places,
    roster_hash,
    seed_hash,
    self_mask,
    sketch_seed,
)
from erosion_common.sealed.shares import (
    KEY,
    SEED,
    CannotUnmask,
    Dealt,
    Pair,
    ReleasedShares,
    does_not_fit,
    threshold,
)

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

    @property
    def holds(self) -> bool:
        """Whether the sum can be one of updates at those distances."""
        return self.apart <= self.at_most


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
    for place, apart in wide_chunks(len(own)):  # both are long: no copy of either is made
        np.multiply(own[place], share, out=apart, dtype=np.float64)
        np.subtract(total[place], apart, out=apart)
        square += float(np.dot(apart, apart))
    claimed = sum(weight * distances[name] for name, weight in weights.items()) * own_norm
    slack = EXACT_SLACK if is_exact(len(own)) else SKETCH_SLACK
    return SumCheck(math.sqrt(square), slack * claimed + rounding)


@dataclass(frozen=True, eq=False)
class Attempt:
    """An attempt at a round, once every site has said hello."""

    context: RoundContext
    roster: Roster
    own: NDArray[np.float32]  # (dim,) the user's update
    own_norm: float  # not 0

    @cached_property
    def hash(self) -> bytes:
        """The attempt, and everybody in it."""
        return roster_hash(self.context, self.roster)

    def asker(self, key: ResiduePrivateKey) -> Asker:
        """Return the user's side of the distances."""
        return Asker.of(key, self.own, self.own_norm, sketch_seed(self.hash))

    def view(
        self, asked: bytes, weights: Mapping[str, float], distances: Mapping[str, float]
    ) -> View:
        """Return phase 3: the weights, and a range that fits those with weight."""
        farthest = max(distances[name] for name, weight in weights.items() if weight > 0)
        return View(asked, weights, scale_for(self.own_norm, farthest))

    def shares(self, released: Mapping[str, Pair], dealt: Mapping[str, Dealt]) -> ReleasedShares:
        """Return the released shares. Raises CannotUnmask if too few sites gave any."""
        needed = threshold(len(self.roster))
        if len(released) < needed:
            raise CannotUnmask(
                f"{len(released)} hospitals answered to unmask the sum, {needed} are needed"
            )
        return ReleasedShares(self.hash, released, dealt, places(self.roster), needed)

    def unmasked(
        self, view: View, total: Words, delivered: Mapping[str, bytes], shares: ReleasedShares
    ) -> NDArray[np.float32]:
        """Return the sum (dim,) in `total`'s memory, by the seeds' hashes. Raises CannotUnmask."""
        masks = []
        for name, hash_ in delivered.items():
            seed = shares.secret(SEED, name)
            if seed_hash(view, name, seed) != hash_:
                raise does_not_fit(name)
            masks.append(self_mask(view, name, seed, -1))
        for gone in sorted(set(view.members) - set(delivered)):
            private = private_half(shares.secret(KEY, gone))
            if private.public_key().public_bytes_raw() != self.roster[gone].mask:
                raise does_not_fit(gone)
            masks += [pair_mask(view, self.roster, (gone, name), private, +1) for name in delivered]
        apply_masks(total, masks)
        return decode_sum(total, view.scale)

    def check(
        self,
        total: NDArray[np.float32],
        view: View,
        delivered: Sequence[str],
        distances: Mapping[str, float],
        asker: Asker,
    ) -> SumCheck:
        """Return whether the sum fits the distances."""
        weights = {name: view.weights[name] for name in delivered}
        in_ring = len(self.own) ** 0.5 * len(delivered) / 2 / view.scale
        in_asking = sum(weights.values()) * len(asker.own) ** 0.5 / asker.scale
        return check_sum(
            total,
            self.own,
            weights,
            distances,
            own_norm=self.own_norm,
            rounding=in_ring + in_asking,
        )
