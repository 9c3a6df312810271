"""What the coordinator computes in a sealed round, and what ends one without a step."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from erosion_common.aggregation.cohort import HospitalName
from erosion_common.algorithms.base import SealedMeasure
from erosion_common.sealed import legs
from erosion_common.sealed.distance import Asker, Question
from erosion_common.sealed.keys import public_half
from erosion_common.sealed.masks import Words, apply_masks, decode_sum, scale_for
from erosion_common.sealed.paillier import PaillierPrivateKey
from erosion_common.sealed.roster import (
    Roster,
    RoundContext,
    View,
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
from erosion_common.sealed.sum_rules import SumCheck, check_length, check_sum


@dataclass(frozen=True, slots=True, eq=False)
class Attempt:
    """An attempt at a round, once every site has said hello."""

    context: RoundContext
    roster: Roster
    own: NDArray[np.float32]  # (dim,) the user's update
    own_norm: float  # not 0
    measure: SealedMeasure
    measured_norm: float  # the same in the method's measure, not 0 either

    @property
    def hash(self) -> bytes:
        """The attempt, and everybody in it."""
        return roster_hash(self.context, self.roster)

    @property
    def needed(self) -> int:
        """How many sites must help to take the masks off."""
        return threshold(len(self.roster))

    def asker(self, key: PaillierPrivateKey) -> Asker:
        """Return the user's side of the distances."""
        own = self.measure.scaled(self.own)
        return Asker.of(key, own, self.measured_norm, sketch_seed(self.hash))

    def question(self, asker: Asker, noise: Callable[[], mpz]) -> Question:
        """Return leg 2, the same for everyone."""
        return asker.question(noise)

    def view(
        self,
        asked: bytes,
        told: Mapping[str, float],
        distances: Mapping[str, float],
        lengths: Mapping[str, legs.Lengths],
    ) -> View:
        """Return leg 3: the weights, and a range that fits those with weight."""
        farthest = max(
            lengths[name].whole / self.own_norm if name in lengths else distances[name]
            for name, weight in told.items()
            if weight > 0
        )
        return View(asked, told, scale_for(self.own_norm, farthest))

    def shares(self, released: Mapping[str, Pair], dealt: Mapping[str, Dealt]) -> ReleasedShares:
        """Return the released shares. Raises CannotUnmask if too few sites gave any."""
        if len(released) < self.needed:
            raise CannotUnmask(
                f"{len(released)} hospitals answered to unmask the sum, {self.needed} are needed"
            )
        return ReleasedShares(self.hash, released, dealt, places(self.roster), self.needed)

    def unmasked(
        self, view: View, total: Words, delivered: Mapping[str, bytes], shares: ReleasedShares
    ) -> NDArray[np.float32]:
        """Return the sum of the masked updates, in the memory of `total`: (dim,).

        `delivered` has the hash of each one's seed. Raises CannotUnmask.
        """
        masks = []
        for name, hash_ in delivered.items():
            seed = shares.secret(SEED, name)
            if seed_hash(view, name, seed) != hash_:
                raise does_not_fit(name)
            masks.append(self_mask(view, name, seed, -1))
        for gone in sorted(set(view.members) - set(delivered)):
            private = shares.secret(KEY, gone)
            if public_half(private) != self.roster[gone].mask:
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
        lengths: Mapping[str, legs.Lengths],
        asker: Asker,
    ) -> SumCheck:
        """Return whether the sum fits the distances, and the lengths where there are any."""
        weights = {name: view.weights[name] for name in delivered}
        in_ring = len(self.own) ** 0.5 * len(delivered) / 2 / view.scale
        if lengths:
            whole = {name: said.whole for name, said in lengths.items()}
            check = check_length(total, weights, whole, rounding=in_ring)
            if not check.holds:
                return check
        in_asking = sum(weights.values()) * len(asker.own) ** 0.5 / asker.scale
        return check_sum(
            self.measure.scaled(total),
            self.measure.scaled(self.own),
            weights,
            distances,
            own_norm=self.measured_norm,
            rounding=self.measure.largest_scale * in_ring + in_asking,
        )


MOST_FAILURES = 2  # in a row; then a hospital is not asked any more
NOBODY = ""  # at fault where all are there and too few have weight


class Skipped(Exception):  # noqa: N818 - ends the round, not the run
    """The round gives no step, and why."""

    def __init__(self, why: str, failed_by: Collection[HospitalName] = (), times: int = 1) -> None:
        """`failed_by`: the hospitals at fault; `times`: how much that counts."""
        super().__init__(why)
        self.failed_by, self.times = failed_by, times


@dataclass(slots=True)
class Faults:
    """Of one round, while it goes on."""

    rejected: dict[HospitalName, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def note(self, what: str) -> None:
        """Note what had no effect."""
        self.notes.append(what)

    def reject(self, name: HospitalName, why: str) -> None:
        """Reject a hospital; its first reason counts."""
        self.rejected.setdefault(name, why)


Failures = Mapping[HospitalName, int]  # failed rounds in a row, by hospital


def after_skipping(failures: Failures, why: Skipped) -> dict[HospitalName, int]:
    """Return the counts with one more failed round."""
    return {**failures, **{name: failures.get(name, 0) + why.times for name in why.failed_by}}


def after_success(failures: Failures) -> dict[HospitalName, int]:
    """Return the counts of those that are not asked any more."""
    return {name: times for name, times in failures.items() if times >= MOST_FAILURES}
