"""The coordinator's arithmetic in a sealed round: what each leg asks, and what its answers give."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from erosion.common.algorithms.base import SealedMeasure
from erosion.common.sealed import legs
from erosion.common.sealed.distances.distance import Asker, Question
from erosion.common.sealed.distances.paillier import PrivateKey
from erosion.common.sealed.masks import ring, shamir
from erosion.common.sealed.masks.key_agreement import public_half
from erosion.common.sealed.masks.mask import Words, apply_masks
from erosion.common.sealed.masks.masked_update import pair_mask, self_mask
from erosion.common.sealed.masks.released_shares import (
    KEY,
    SEED,
    CannotUnmask,
    Dealt,
    Pair,
    ReleasedShares,
    does_not_fit,
)
from erosion.common.sealed.roster import (
    Roster,
    RoundContext,
    View,
    places,
    roster_hash,
    seed_hash,
    sketch_seed,
)
from erosion.common.sealed.sums.sum_check import SumCheck, check_length, check_sum


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
        return shamir.threshold(len(self.roster))

    def asker(self, key: PrivateKey) -> Asker:
        """The user's side of the distances."""
        own = self.measure.scaled(self.own)
        return Asker.of(key, own, self.measured_norm, sketch_seed(self.hash))

    def question(self, asker: Asker, noise: Callable[[], mpz]) -> Question:
        """Leg 2, the same for everyone."""
        return asker.question(noise)

    def view(
        self,
        asked: bytes,
        told: Mapping[str, float],
        distances: Mapping[str, float],
        lengths: Mapping[str, legs.Lengths],
    ) -> View:
        """Leg 3: the weights, and a range that fits those with weight."""
        farthest = max(
            lengths[name].whole / self.own_norm if name in lengths else distances[name]
            for name, weight in told.items()
            if weight > 0
        )
        return View(asked, told, ring.scale_for(self.own_norm, farthest))

    def shares(self, released: Mapping[str, Pair], dealt: Mapping[str, Dealt]) -> ReleasedShares:
        """What the sites gave to take the masks off. Raises CannotUnmask where too few did."""
        if len(released) < self.needed:
            raise CannotUnmask(
                f"{len(released)} hospitals answered to unmask the sum, {self.needed} are needed"
            )
        return ReleasedShares(self.hash, released, dealt, places(self.roster), self.needed)

    def unmasked(
        self, view: View, total: Words, delivered: Mapping[str, bytes], shares: ReleasedShares
    ) -> NDArray[np.float32]:
        """The sum of the masked updates, in the memory of `total`: (dim,).

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
        return ring.decode(total, view.scale)

    def check(
        self,
        total: NDArray[np.float32],
        view: View,
        delivered: Sequence[str],
        distances: Mapping[str, float],
        lengths: Mapping[str, legs.Lengths],
        asker: Asker,
    ) -> SumCheck:
        """Whether the sum fits the distances, and the lengths where there are any."""
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
