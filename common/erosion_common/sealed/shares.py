"""Shares of a site's two secrets: dealt in phase 2, sealed to their holders, released in phase 4.

A secret is in n shares of which t give it and t - 1 nothing (Shamir 1979). Every site gives in
phase 2 the hashes of those it deals: these show which shares are wrong.
"""

import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from erosion_common.sealed.keys import agree, derive, digest

P = 2**256 + 297  # a prime just above the secrets, which have 32 bytes
SECRET_BYTES, SHARE_BYTES = 32, 33


def threshold(num_sites: int) -> int:
    """Return t = floor(2n/3) + 1, so that no two groups can unmask two different views."""
    return 2 * num_sites // 3 + 1


def split_secret(secret: bytes, needed: int, places: Sequence[int]) -> list[bytes]:
    """Return shares for the places (from 1), of which any `needed` give the secret of 32 bytes."""
    coefficients = [int.from_bytes(secret), *(secrets.randbelow(P) for _ in range(needed - 1))]
    return [_value(coefficients, place).to_bytes(SHARE_BYTES) for place in places]


def combine_shares(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret of as many shares, by place, as it needs. Raises ValueError for others."""
    total = 0
    for place, share in shares.items():
        numerator = denominator = 1
        for other in shares:
            if other != place:
                numerator = numerator * -other % P
                denominator = denominator * (place - other) % P
        total += int.from_bytes(share) * numerator * pow(denominator, -1, P)
    secret = total % P
    if secret >> (8 * SECRET_BYTES):
        raise ValueError("the shares do not fit together")
    return secret.to_bytes(SECRET_BYTES)


def _value(coefficients: Sequence[int], place: int) -> int:
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * place + coefficient) % P
    return value


ENVELOPE_BYTES = 2 * SHARE_BYTES + 16  # both shares, and the tag


@dataclass(frozen=True, slots=True, repr=False)
class Shares:
    """What one site holds of another: a share of each of its two secrets."""

    seed: bytes  # of b_j, released if j delivered
    key: bytes  # of j's mask key, released if it did not


@dataclass(frozen=True, slots=True, repr=False)
class PairChannel:
    """The sealed way between two sites in one attempt at a round."""

    key: bytes
    roster_hash: bytes

    @classmethod
    def between(
        cls, names: tuple[str, str], own: X25519PrivateKey, other: bytes, roster_hash: bytes
    ) -> "PairChannel":
        """Return the same channel from either side. `names`: the own one first, as are the keys."""
        pairs = sorted(zip(names, (own.public_key().public_bytes_raw(), other), strict=True))
        bound = digest("seal", roster_hash, *(part for pair in pairs for part in pair))
        return cls(derive(agree(own, other), bound), roster_hash)

    def seal(self, shares: Shares, *, sender: str, receiver: str) -> bytes:
        """Return 82 bytes for the receiver alone. At most one message in each direction."""
        content = shares.seed + shares.key
        about = digest("shares", self.roster_hash, sender, receiver)
        return AESGCM(self.key).encrypt(_nonce(sender, receiver), content, about)

    def open(self, envelope: bytes, *, sender: str, receiver: str) -> Shares:
        """Raises ValueError where it was not sealed here, by that sender, for that receiver."""
        if len(envelope) != ENVELOPE_BYTES:
            raise ValueError(f"an envelope of {len(envelope)} bytes, expected {ENVELOPE_BYTES}")
        about = digest("shares", self.roster_hash, sender, receiver)
        try:
            content = AESGCM(self.key).decrypt(_nonce(sender, receiver), envelope, about)
        except InvalidTag:
            raise ValueError("an envelope that was not sealed by its sender") from None
        return Shares(content[:SHARE_BYTES], content[SHARE_BYTES:])


def _nonce(sender: str, receiver: str) -> bytes:
    # The key is of this pair and attempt and seals one message in each direction.
    return bytes(11) + (b"\1" if sender < receiver else b"\2")


SEED, KEY = 0, 1  # which of a site's two secrets
Pair = tuple[Mapping[str, bytes], Mapping[str, bytes]]  # shares of seeds and of keys, by dealer
Dealt = Mapping[str, tuple[bytes, bytes]]  # commitments to both shares, by who they are for

COMMITMENT_BYTES = 16


class CannotUnmask(Exception):  # noqa: N818 - ends the round, not the run
    """The masks cannot be taken off: the sum stays hidden."""

    def __init__(
        self, why: str, at_fault: str | None = None, contradicts: Sequence[str] = ()
    ) -> None:
        """`at_fault`: the site with the missing secret; None: too few helped.

        `contradicts`: the sites that have no right share of it, where that may be their fault.
        """
        super().__init__(why)
        self.at_fault, self.contradicts = at_fault, contradicts


def commitment(roster_hash: bytes, dealer: str, holder: str, which: int, share: bytes) -> bytes:
    """Return the hash of a share: it discloses nothing of it, and fits no other."""
    return digest("share", roster_hash, dealer, holder, which, share)[:COMMITMENT_BYTES]


@dataclass(frozen=True, eq=False)
class ReleasedShares:
    """Of one round."""

    roster_hash: bytes
    released: Mapping[str, Pair]  # by who released them
    dealt: Mapping[str, Dealt]  # by who dealt
    places: Mapping[str, int]  # where each site's shares are taken
    needed: int  # of a secret

    def secret(self, which: int, of: str) -> bytes:
        """Return one of a site's secrets. Raises CannotUnmask."""
        right = {
            self.places[site]: pair[which][of]
            for site, pair in self.released.items()
            if of in pair[which] and (site, which, of) not in self._wrong
        }
        if len(right) < self.needed:
            others = [n for n in self.released if n != of and self.places[n] not in right]
            why = f"{len(right)} shares of {of}'s secret came, {self.needed} are needed"
            # A group large enough to take off any mask is not taken for liars.
            if len(others) >= self.needed:
                raise CannotUnmask(why, of)
            if others:
                why += f"; {', '.join(others)} gave none that is the one that {of} says it dealt"
            raise CannotUnmask(why, of, others)
        try:
            return combine_shares(dict(sorted(right.items())[: self.needed]))
        except ValueError:
            raise does_not_fit(of) from None

    def wrong(self, members: Collection[str]) -> dict[str, list[str]]:
        """Return by site the members for which it released another share than it was dealt."""
        found: dict[str, list[str]] = {}
        for site, _, of in sorted(self._wrong):
            if of in members:
                found.setdefault(site, []).append(of)
        return found

    @cached_property
    def _wrong(self) -> frozenset[tuple[str, int, str]]:
        """Which shares are not those that were dealt: who released them, and of which secret."""
        return frozenset(
            (site, which, of)
            for site, pair in self.released.items()
            for which in (SEED, KEY)
            for of in self.dealt.keys() & pair[which].keys()
            if commitment(self.roster_hash, of, site, which, pair[which][of])
            != self.dealt[of][site][which]
        )


def does_not_fit(of: str) -> CannotUnmask:
    """Return the error for a site that dealt shares of another secret."""
    return CannotUnmask(f"the shares of {of}'s secret do not fit together", of)
