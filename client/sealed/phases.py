"""Where a site is in a sealed round, and what leaves it in the last two legs.

Each phase holds what the one before it had, so that a coordinator that was killed and asks the same
again gets the same answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from erosion.common.algorithms.base import SealedMeasure
from erosion.common.sealed.audit.opening import Opening
from erosion.common.sealed.distances.paillier import PublicKey as PaillierKey
from erosion.common.sealed.masks.mask import Words
from erosion.common.sealed.masks.share_envelope import Shares
from erosion.common.sealed.roster import Hello, Receipt, Roster, RoundContext, View

Values = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Greeted:
    """After leg 1."""

    context: RoundContext
    update: Values  # (dim,)
    measure: SealedMeasure
    update_hash: bytes
    mask_key: bytes
    seal_key: bytes
    hello: Hello


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Measured:
    """After leg 2."""

    greeted: Greeted
    roster: Roster
    roster_hash: bytes
    asked: bytes  # hash of the whole question
    seed: bytes  # b_i, of the self mask
    own_shares: Shares
    dealt: Mapping[str, tuple[bytes, bytes]]  # commitments to everybody's shares
    paillier: PaillierKey  # of the user's coordinator
    answer: mpz  # the sealed distance that was given
    envelopes: Mapping[str, bytes]  # that went with it


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Masked:
    """After leg 3."""

    measured: Measured
    told: View
    shares: Mapping[str, Shares]  # held of everybody, the site itself included


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Unmasked:
    """After leg 4, until the next round."""

    masked: Masked  # without shares
    delivered: tuple[str, ...]  # by name
    released: "Released"


Phase = Greeted | Measured | Masked | Unmasked | None


@dataclass(frozen=True, slots=True, eq=False)
class MaskedUpdate:
    """What leaves in leg 3."""

    words: Words  # (dim,)
    receipt: Receipt
    seed: bytes  # hash of the self mask's seed, by which shares of it that are wrong are noticed
    opening: Opening  # stays here, for an audit


@dataclass(frozen=True, slots=True, repr=False)
class Released:
    """What leaves in leg 4: of each member of the sum exactly one share."""

    seeds: Mapping[str, bytes]
    keys: Mapping[str, bytes]
