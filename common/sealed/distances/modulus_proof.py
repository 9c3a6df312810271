"""A proof that a Paillier modulus hides what it should: gcd(n, phi(n)) = 1 (Goldberg et al. 2018).

With a modulus made otherwise, n-th powers would not cover all residues, and whoever made it could
read more of a hospital's answer than its distance. The proof is n-th roots of numbers that nobody
chose: for every prime that n and phi(n) share, such a root exists with a chance of 1 in that prime.
"""

import hashlib
from collections.abc import Sequence
from functools import lru_cache

import gmpy2
from gmpy2 import mpz

from erosion.common.sealed.digest import digest
from erosion.common.sealed.distances.paillier import PrivateKey, PublicKey

SMALLEST_FACTOR = 6370  # n has none below, so that a root exists with a chance below 1 in 6370
NUM_ROOTS = 11  # 6370^11 > 2^128
FEWEST_BITS, MOST_BITS = 2048, 4096


def prove(key: PrivateKey, run_hash: bytes) -> list[mpz]:
    """The n-th roots mod n of the modulus's challenges, which are of one run."""
    n = key.public.n
    exponent = gmpy2.invert(n, (key.p - 1) * (key.q - 1))
    return [gmpy2.powmod(challenge, exponent, n) for challenge in _challenges(n, run_hash)]


def problem_with_modulus(key: PublicKey, roots: Sequence[mpz], run_hash: bytes) -> str | None:
    """Why the modulus must not be used in that run, or None."""
    return _problem(key.n, tuple(roots), run_hash)


@lru_cache(maxsize=16)  # a run's modulus comes with every round
def _problem(n: mpz, roots: tuple[mpz, ...], run_hash: bytes) -> str | None:
    if not FEWEST_BITS <= n.bit_length() <= MOST_BITS:
        return f"a modulus of {n.bit_length()} bits, expected {FEWEST_BITS} to {MOST_BITS}"
    if gmpy2.gcd(n, gmpy2.primorial(SMALLEST_FACTOR)) != 1:
        return "a modulus with a small factor"
    if len(roots) != NUM_ROOTS or not all(
        gmpy2.powmod(root, n, n) == challenge
        for root, challenge in zip(roots, _challenges(n, run_hash), strict=True)
    ):
        return "a modulus whose proof does not hold"
    return None


def _challenges(n: mpz, run_hash: bytes) -> list[mpz]:
    num_bytes = n.bit_length() // 8 + 17  # so long that their remainders are as good as uniform
    seed = digest("modulus", run_hash, int(n).to_bytes((n.bit_length() + 7) // 8))
    return [
        mpz(int.from_bytes(hashlib.shake_256(seed + bytes([number])).digest(num_bytes))) % n
        for number in range(NUM_ROOTS)
    ]
