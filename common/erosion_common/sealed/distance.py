"""A distance between two updates that neither side shows: |S (g_i - g_0)| / |g_0|, sealed.

The user sends Enc(u_j) of u = rint(s S g_0); the site answers with Enc(2 |v|^2 - 4 <u, v>) of its
vector v. Numbers are modulo 2^64, and this one is even: 63 bits of an update, and no more.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from erosion_common.sealed.keys import digest
from erosion_common.sealed.masks import sketch
from erosion_common.sealed.power_residues import (
    MESSAGE_BITS,
    ResidueKey,
    ResiduePrivateKey,
    Whole,
    product_of_powers,
    to_bytes,
)

OWN_BITS, MOST_BITS = 22, 30  # |u| <= 2^22 < |v| <= 2^30, so |v - u|^2 < 2^61
FEWEST_BITS = 14  # of |v|: a 256th of the user's

Values = NDArray[np.float32]
Integers = NDArray[np.int64]  # (k,)


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """What a site needs to answer: nothing in it can be read without the user's primes."""

    key: ResidueKey
    sealed_own: Sequence[Whole]  # Enc(u_j): min(dim, k) of them
    scale: float  # s, a power of 2

    def hash(self, roster_hash: bytes) -> bytes:
        """Return the hash of phase 2. It is in the masks, so all must be asked alike."""
        num_bytes = self.key.modulus_bytes
        numbers = (self.key.n, self.key.y, *self.sealed_own)
        parts = [to_bytes(number, num_bytes) for number in numbers]
        return digest("asked", roster_hash, float(self.scale), *parts)


@dataclass(frozen=True, slots=True, eq=False)
class Asker:
    """The user's side of one round."""

    key: ResiduePrivateKey
    own: NDArray[np.int64]  # u
    own_norm: float  # |g_0|
    scale: float  # s

    @classmethod
    def of(cls, key: ResiduePrivateKey, update: Values, own_norm: float, seed: bytes) -> "Asker":
        """Return it for the user's update with a norm above 0; the seed is the sketch's."""
        scale = 2.0 ** (OWN_BITS - math.ceil(math.log2(own_norm)))
        own = np.rint(scale * sketch(update, seed)).astype(np.int64)
        return cls(key, own, own_norm, scale)

    def question(self) -> Question:
        """Return the question, each time sealed afresh."""
        sealed = [self.key.seal(value) for value in self.own.tolist()]
        return Question(self.key.public, sealed, self.scale)

    @property
    def farthest(self) -> float:
        """Any d_i from here on may stand for a larger one."""
        return (2.0**MOST_BITS - 2.0**OWN_BITS) / self.scale / self.own_norm

    def distance(self, answer: Whole) -> float:
        """Return d_i of a site's answer."""
        twice = self.key.open(answer)
        signed = twice - (1 << MESSAGE_BITS) if twice >> (MESSAGE_BITS - 1) else twice
        squared = max(0, signed // 2 + int(self.own @ self.own))
        return math.sqrt(squared) / self.scale / self.own_norm


def problem_with_question(question: Question, num_values: int) -> str | None:
    """Return why a site must not answer, or None; the key has a separate proof."""
    n, sealed = question.key.n, question.sealed_own
    if len(sealed) != num_values:
        return f"{len(sealed)} sealed values, expected {num_values}"
    if not (question.scale > 0 and math.isfinite(question.scale)):
        return f"a scale of {question.scale}"
    product: Whole = 1
    for value in sealed:
        if not 0 < value < n:
            return "a sealed value out of range"
        product = product * value % n
    if math.gcd(int(product), int(n)) != 1:
        return "a sealed value that is none"
    return None


def own_values(question: Question, update: Values, seed: bytes) -> Integers:
    """Return v of a site; of an update far beyond the user's, 2^30 and nothing else."""
    with np.errstate(over="ignore"):  # infinitely far is far, too
        values = question.scale * sketch(update, seed)
    if float(np.linalg.norm(values)) >= 2.0**MOST_BITS:
        far = np.zeros(len(values), np.int64)
        far[0] = 1 << MOST_BITS
        return far
    return np.rint(values).astype(np.int64)


def is_fine(values: Integers) -> bool:
    """Return whether v has more digits than a crafted question could read one by one.

    The 63 bits of an answer are any linear function of v. Of values with few digits they would be
    many values; an honest question's are that few where a site's update is nearly nothing.
    """
    return float(np.linalg.norm(values)) >= 2.0**FEWEST_BITS


def answer(question: Question, values: Integers) -> Whole:
    """Return Enc(2 |v|^2 - 4 <u, v>): a square, so a crafted question reads 63 bits at most."""
    n = question.key.n
    inner = product_of_powers(question.sealed_own, (-values).tolist(), n)
    return inner**4 * question.key.seal(2 * int(values @ values)) % n
