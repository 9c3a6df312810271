"""The shares that sites release in leg 4, held against what was dealt in leg 2.

Every site says in leg 2, by their hashes, which shares it deals. So a wrong share is known from a
right one however many are wrong, and so is a site whose shares do not give its secret.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from erosion.common.sealed.digest import digest
from erosion.common.sealed.masks import shamir

SEED, KEY = 0, 1  # which of a site's two secrets
Pair = tuple[Mapping[str, bytes], Mapping[str, bytes]]  # shares of seeds and of keys, by dealer
Dealt = Mapping[str, tuple[bytes, bytes]]  # commitments to both shares, by who they are for

COMMITMENT_BYTES = 16


class CannotUnmask(Exception):  # noqa: N818 - ends the round, not the run
    """The masks cannot be taken off: the sum stays hidden."""

    def __init__(
        self, why: str, culprit: str | None = None, contradicts: Sequence[str] = ()
    ) -> None:
        """`culprit`: the site whose secret cannot be had; None: too few helped.

        `contradicts`: the sites that have no right share of it, where that may be their fault.
        """
        super().__init__(why)
        self.culprit, self.contradicts = culprit, contradicts


def commitment(roster_hash: bytes, dealer: str, holder: str, which: int, share: bytes) -> bytes:
    """Of a share, which is as random as a key: it tells nothing of it, and fits no other."""
    return digest("share", roster_hash, dealer, holder, which, share)[:COMMITMENT_BYTES]


@dataclass(frozen=True, slots=True, eq=False)
class ReleasedShares:
    """Of one round."""

    roster_hash: bytes
    released: Mapping[str, Pair]  # by who released them
    dealt: Mapping[str, Dealt]  # by who dealt
    places: Mapping[str, int]  # where each site's shares are taken
    needed: int  # of a secret

    def secret(self, which: int, of: str) -> bytes:
        """One of a site's secrets. Raises CannotUnmask."""
        right = {
            self.places[site]: pair[which][of]
            for site, pair in self.released.items()
            if of in pair[which] and self._is_right(which, of, site)
        }
        if len(right) < self.needed:
            others = [n for n in self.released if n != of and self.places[n] not in right]
            why = f"{len(right)} shares of {of}'s secret came, {self.needed} are needed"
            # As many as could take off any mask by themselves are not taken for liars.
            if len(others) >= self.needed:
                raise CannotUnmask(why, of)
            if others:
                why += f"; {', '.join(others)} gave none that is the one that {of} says it dealt"
            raise CannotUnmask(why, of, others)
        try:
            return shamir.combine(dict(sorted(right.items())[: self.needed]))
        except ValueError:
            raise does_not_fit(of) from None

    def wrong(self, members: Collection[str]) -> dict[str, list[str]]:
        """By site, the members of whom it released another share than was dealt to it."""
        found: dict[str, list[str]] = {}
        for site, pair in self.released.items():
            for which in (SEED, KEY):
                for of in members & pair[which].keys():
                    if not self._is_right(which, of, site):
                        found.setdefault(site, []).append(of)
        return found

    def _is_right(self, which: int, of: str, site: str) -> bool:
        share = self.released[site][which][of]
        return commitment(self.roster_hash, of, site, which, share) == self.dealt[of][site][which]


def does_not_fit(of: str) -> CannotUnmask:
    """Whoever dealt the shares dealt those of another secret."""
    return CannotUnmask(f"the shares of {of}'s secret do not fit together", of)
