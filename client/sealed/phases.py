"""A site's phases in a sealed round, its keys, and what leaves it in the last two phases.

Each phase holds what the one before it had, so that a coordinator that was killed and repeats a
request gets the same answer.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

import gmpy2
import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from erosion.common.algorithms.base import SealedMeasure
from erosion.common.sealed.audit import Opening
from erosion.common.sealed.masks import Words
from erosion.common.sealed.paillier import PaillierKey
from erosion.common.sealed.roster import Hello, Receipt, Roster, RoundContext, View
from erosion.common.sealed.shares import Shares
from erosion.common.support.keys import PrivateKey, PublicKey


@dataclass(frozen=True, slots=True, repr=False)
class SealedIdentity:
    """The site's node key, and the pinned ones of the hospitals that it would be summed with."""

    name: str
    node_key: PrivateKey
    peer_keys: Mapping[str, PublicKey] = field(default_factory=dict)


class NoiseAhead:
    """Noise for one key at a time; each noise is given out once."""

    def __init__(self) -> None:
        """Nothing is made until `prepare` or `take`."""
        self._thread: threading.Thread | None = None
        self._made: tuple[PaillierKey, mpz] | None = None

    def prepare(self, key: PaillierKey) -> None:
        """Compute one noise in the background."""
        if self._thread is None and self._made is None:
            self._thread = threading.Thread(target=self._make, args=(key,), daemon=True)
            self._thread.start()

    def take(self, key: PaillierKey) -> mpz:
        """Return one noise under the key, computed now where none is ready."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        made, self._made = self._made, None
        return made[1] if made is not None and made[0] == key else key.noise()

    def _make(self, key: PaillierKey) -> None:
        gmpy2.get_context().allow_release_gil = True  # of this thread
        self._made = key, key.noise()


Values = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Greeted:
    """After phase 1."""

    context: RoundContext
    update: Values  # (dim,)
    measure: SealedMeasure
    update_hash: bytes
    mask_key: bytes
    seal_key: bytes
    hello: Hello


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Measured:
    """After phase 2."""

    greeted: Greeted
    roster: Roster
    roster_hash: bytes
    asked: bytes  # hash of the whole question
    seed: bytes  # b_i, of the self mask
    own_shares: Shares
    dealt: Mapping[str, tuple[bytes, bytes]]  # commitments to everybody's shares
    paillier: PaillierKey  # the user's coordinator's
    answer: mpz  # the sealed distance that was sent
    envelopes: Mapping[str, bytes]  # that was sent with it


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Masked:
    """After phase 3."""

    measured: Measured
    told: View
    shares: Mapping[str, Shares]  # for everybody, including the site itself


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Unmasked:
    """After phase 4, until the next round."""

    masked: Masked  # without shares
    delivered: tuple[str, ...]  # by name
    released: "Released"


Phase = Greeted | Measured | Masked | Unmasked | None


@dataclass(frozen=True, slots=True, eq=False)
class MaskedUpdate:
    """What leaves in phase 3."""

    words: Words  # (dim,)
    receipt: Receipt
    seed: bytes  # hash of the self mask's seed, which reveals wrong shares of it
    opening: Opening  # stays here, for an audit


@dataclass(frozen=True, slots=True, repr=False)
class Released:
    """What leaves in phase 4: of each member of the sum exactly one share."""

    seeds: Mapping[str, bytes]
    keys: Mapping[str, bytes]
