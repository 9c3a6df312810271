"""Paillier encryption (1999): whole numbers that others can add up and multiply without reading.

A modulus comes with a proof that gcd(n, phi(n)) = 1 (Goldberg et al. 2018). With another, n-th
powers would not cover all residues, and its maker could read more of an answer than its distance.
The proof is n-th roots of numbers that nobody chose: for every prime that n and phi(n) share, such
a root exists with a chance of 1 in that prime.
"""

import hashlib
import logging
import math
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache

import torch
from cryptography.hazmat.primitives.asymmetric import rsa
from torch import Tensor

from erosion_common.sealed.keys import digest
from erosion_common.support.keys import PublicKey
from erosion_common.support.software import install_command

logger = logging.getLogger("erosion.sealed")

Whole = int  # or gmpy2's mpz, which computes as an int does, eight times as fast

try:
    import gmpy2
except ModuleNotFoundError:  # the extra `sealed`
    gmpy2 = None
_whole: Callable[[int], Whole] = gmpy2.mpz if gmpy2 else int
_power: Callable[[Whole, Whole, Whole], Whole] = gmpy2.powmod if gmpy2 else pow


def release_lock() -> None:
    """Let others have Python's lock during this thread's powers; only gmpy2 can."""
    if gmpy2:
        gmpy2.get_context().allow_release_gil = True


@cache
def _say_if_slow() -> None:
    if not gmpy2:
        command = install_command("sealed")
        logger.warning("sealed rounds take several times as long without gmpy2. Run: %s", command)


def to_bytes(number: Whole, num_bytes: int | None = None) -> bytes:
    """Return the number, the most significant byte first; None: as many as it takes."""
    return int(number).to_bytes(num_bytes or (number.bit_length() + 7) // 8)


def from_bytes(content: bytes) -> Whole:
    """Return the number of these bytes, fit for fast powers."""
    return _whole(int.from_bytes(content))


class PowerTable:
    """Powers of `base` modulo `modulus` for exponents of up to `num_bytes` bytes."""

    def __init__(self, base: Whole, modulus: Whole, num_bytes: int) -> None:
        """A few hundred multiplications for each byte."""
        self._modulus, self._num_bytes = modulus, num_bytes
        self._rows: list[list[Whole]] = []
        for _ in range(num_bytes):
            row = [_whole(1), base]
            for _ in range(_WIDTH - 2):
                row.append(row[-1] * base % modulus)
            self._rows.append(row)
            base = row[-1] * base % modulus

    def power(self, exponent: int) -> Whole:
        """Return base^exponent: a multiplication for each byte of the exponent."""
        total = _whole(1)
        digits = exponent.to_bytes(self._num_bytes, "little")
        for row, digit in zip(self._rows, digits, strict=True):
            total = total * row[digit] % self._modulus
        return total


def generator(prime: Whole, draw: Callable[[Whole], int]) -> Whole:
    """Return a number with all of 1 to prime - 1 as its powers, as far as can be known.

    `draw` gives a random number from 1 to below its argument. Only small factors of prime - 1 are
    known. The powers miss any only where they miss those of a large factor: with a chance below 1
    in SEARCHED for each, and then only who knows the prime can see it.
    """
    order = prime - 1
    small = [f for f in _primes(SEARCHED) if order % f == 0]
    while True:
        candidate = _whole(draw(prime))
        if all(pow(candidate, order // f, prime) != 1 for f in small):
            return candidate


SEARCHED = 1 << 16


def _primes(below: int) -> list[int]:
    is_prime = bytearray([0, 0]) + bytearray([1]) * (below - 2)
    for number in range(2, int(below**0.5) + 1):
        if is_prime[number]:
            is_prime[number * number :: number] = bytes(len(is_prime[number * number :: number]))
    return [number for number, prime in enumerate(is_prime) if prime]


MODULUS_BITS = 3072


@dataclass(frozen=True, slots=True)
class PaillierKey:
    """n, under which everybody can encrypt."""

    n: Whole

    @property
    def modulus_bytes(self) -> int:
        """Length of n; a ciphertext is twice as long."""
        return (self.n.bit_length() + 7) // 8

    def encrypt(self, message: int, noise: Whole) -> Whole:
        """Return (1 + n)^m noise mod n^2; the noise is r^n mod n^2 of a random r, used once."""
        return (1 + message % self.n * self.n) * noise % self.n**2

    def noise(self) -> Whole:
        """Return r^n mod n^2 of a random r."""
        _say_if_slow()
        return _power(_random_below(self.n), self.n, self.n**2)


@dataclass(frozen=True, slots=True, repr=False)
class PaillierPrivateKey:
    """The primes of n, and what decrypting by the Chinese remainder theorem needs of them."""

    p: Whole
    q: Whole
    h_p: Whole  # 1 / L_p((1 + n)^(p - 1)) mod p
    h_q: Whole
    q_inverse: Whole  # 1 / q^2 mod p^2
    p_inverse: Whole  # 1 / p mod q

    @property
    def public(self) -> PaillierKey:
        """Its public half."""
        return PaillierKey(self.p * self.q)

    def decrypt(self, ciphertext: Whole) -> int:
        """Return the message, from 0 to n - 1."""
        p, q = self.p, self.q
        by_p = (_power(ciphertext, p - 1, p**2) - 1) // p * self.h_p % p
        by_q = (_power(ciphertext, q - 1, q**2) - 1) // q * self.h_q % q
        return int(by_p + p * ((by_q - by_p) * self.p_inverse % q))


class NoiseMaker:
    """r^n mod n^2 of a random r, thirty times faster than without the primes.

    Modulo p^2 the n-th powers are the p - 1 powers of one of them, g^p of a generator g modulo p. A
    random one is that to a random exponent, which a table gives without squarings; likewise q.
    """

    def __init__(self, key: PaillierPrivateKey) -> None:
        """Makes both tables: 38 MB for a modulus of 3072 bits."""
        _say_if_slow()
        self._key = key
        self._tables = [(f, _table(f)) for f in (key.p, key.q)]

    def make(self) -> Whole:
        """Return a fresh one."""
        key = self._key
        by_p, by_q = (table.power(_random_below(f)) for f, table in self._tables)
        return by_q + key.q**2 * ((by_p - by_q) * key.q_inverse % key.p**2)


def new_private_key(bits: int = MODULUS_BITS) -> PaillierPrivateKey:
    """Return a fresh key."""
    numbers = rsa.generate_private_key(public_exponent=65537, key_size=bits).private_numbers()
    return private_key_of(_whole(numbers.p), _whole(numbers.q))


def private_key_of(p: Whole, q: Whole) -> PaillierPrivateKey:
    """Return the key with these primes."""
    n = p * q
    return PaillierPrivateKey(
        p=p,
        q=q,
        h_p=pow((_power(1 + n, p - 1, p**2) - 1) // p, -1, p),
        h_q=pow((_power(1 + n, q - 1, q**2) - 1) // q, -1, q),
        q_inverse=pow(q**2, -1, p**2),
        p_inverse=pow(p, -1, q),
    )


def product_of_powers(bases: Sequence[Whole], exponents: Sequence[int], modulus: Whole) -> Whole:
    """Return prod base^exponent mod modulus; negative exponents are inverted together."""
    upper = [(b, e) for b, e in zip(bases, exponents, strict=True) if e > 0]
    lower = [(b, -e) for b, e in zip(bases, exponents, strict=True) if e < 0]
    total = _in_buckets(upper, modulus)
    if lower:
        total = total * pow(_in_buckets(lower, modulus), -1, modulus) % modulus
    return total


def _in_buckets(powers: Sequence[tuple[Whole, int]], modulus: Whole) -> Whole:
    """Use Pippenger's method: multiply bases with the same digit before raising them to it."""
    width = 5 if len(powers) >= 32 else 3  # bits of a digit
    num_digits = -(-max((e.bit_length() for _, e in powers), default=0) // width)
    total = _whole(1)
    for place in reversed(range(num_digits)):
        for _ in range(width):
            total = total * total % modulus
        buckets: dict[int, Whole] = {}
        for base, exponent in powers:
            if digit := (exponent >> (width * place)) & ((1 << width) - 1):
                known = buckets.get(digit)
                buckets[digit] = base if known is None else known * base % modulus
        # bucket_d^d over all d is the product, over d downwards, of the running product
        so_far = _whole(1)
        for digit in range((1 << width) - 1, 0, -1):
            if digit in buckets:
                so_far = so_far * buckets[digit] % modulus
            total = total * so_far % modulus
    return total


def _table(prime: Whole) -> PowerTable:
    base = _power(generator(prime, _random_below), prime, prime**2)
    return PowerTable(base, prime**2, (prime.bit_length() + 7) // 8)


def _random_below(n: Whole) -> int:
    return secrets.randbelow(int(n) - 1) + 1


_WIDTH = 256  # a digit is a byte of the exponent


def to_rows(numbers: Sequence[Whole], num_bytes: int) -> Tensor:
    """Return (len(numbers), num_bytes) uint8, the most significant byte first."""
    content = b"".join(to_bytes(number, num_bytes) for number in numbers)
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).reshape(-1, num_bytes)


def from_rows(rows: Tensor) -> list[Whole]:
    """Return the numbers of (n, num_bytes) uint8."""
    return [from_bytes(row.numpy().tobytes()) for row in rows]


SMALLEST_FACTOR = 6370  # n has none below, so that a root exists with a chance below 1 in 6370
NUM_ROOTS = 11  # 6370^11 > 2^128
FEWEST_BITS, MOST_BITS = 2048, 4096


def prove(key: PaillierPrivateKey, run_hash: bytes) -> list[Whole]:
    """Return the n-th roots mod n of the modulus's challenges, which are of one run."""
    n = key.public.n
    exponent = pow(n, -1, (key.p - 1) * (key.q - 1))
    return [_power(challenge, exponent, n) for challenge in _challenges(n, run_hash)]


def problem_with_modulus(key: PaillierKey, roots: Sequence[Whole], run_hash: bytes) -> str | None:
    """Return why the modulus must not be used in that run, or None."""
    return _problem(key.n, tuple(roots), run_hash)


@lru_cache(maxsize=16)  # a run's modulus comes with every round
def _problem(n: Whole, roots: tuple[Whole, ...], run_hash: bytes) -> str | None:
    if not FEWEST_BITS <= n.bit_length() <= MOST_BITS:
        return f"a modulus of {n.bit_length()} bits, expected {FEWEST_BITS} to {MOST_BITS}"
    if math.gcd(int(n), math.prod(_primes(SMALLEST_FACTOR + 1))) != 1:
        return "a modulus with a small factor"
    if len(roots) != NUM_ROOTS or not all(
        _power(root, n, n) == challenge
        for root, challenge in zip(roots, _challenges(n, run_hash), strict=True)
    ):
        return "a modulus with a proof that does not hold"
    return None


def _challenges(n: Whole, run_hash: bytes) -> list[Whole]:
    num_bytes = n.bit_length() // 8 + 17  # so long that their remainders are as good as uniform
    seed = digest("modulus", run_hash, to_bytes(n))
    return [
        from_bytes(hashlib.shake_256(seed + bytes([number])).digest(num_bytes)) % n
        for number in range(NUM_ROOTS)
    ]


_BREATH = 1e-5  # seconds in which others have Python's lock, after each millisecond of work


class NoisePool:
    """Each noise is given out once."""

    def __init__(self, key: PaillierPrivateKey) -> None:
        """Nothing is made until `prepare` or `take`."""
        self._key = key
        self._ready: deque[Whole] = deque()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()  # of the maker, which is made once

    def prepare(self, count: int) -> None:
        """Make `count` noises in the background."""
        if self._thread is not None and self._thread.is_alive():
            return
        self._thread = threading.Thread(target=self._fill, args=(count,), daemon=True)
        self._thread.start()

    def take(self) -> Whole:
        """Return one noise, made now where none is ready."""
        try:
            return self._ready.popleft()
        except IndexError:
            return self._make()

    def _make(self) -> Whole:
        with self._lock:
            return self._maker.make()

    @cached_property
    def _maker(self) -> NoiseMaker:
        return NoiseMaker(self._key)

    def _fill(self, count: int) -> None:
        while len(self._ready) < count:
            self._ready.append(self._make())
            time.sleep(_BREATH)


class CoordinatorKeys:
    """Made when they are first needed."""

    def __init__(
        self,
        make: Callable[[], PaillierPrivateKey] = new_private_key,
        sites: Callable[[], Mapping[str, PublicKey]] = dict,
    ) -> None:
        """`make` gives the key, `sites` the hospitals' node keys as far as they are enrolled."""
        self._make, self.sites = make, sites
        self._key: PaillierPrivateKey | None = None
        self._pool: NoisePool | None = None
        self._proofs: dict[bytes, Sequence[Whole]] = {}

    @property
    def key(self) -> PaillierPrivateKey:
        """It stays in this process."""
        if self._key is None:
            self._key = self._make()
        return self._key

    def resume(self, p: Whole, q: Whole) -> None:
        """Use the key of a resumed run."""
        if self._key is None or (self._key.p, self._key.q) != (p, q):
            self._key, self._pool = private_key_of(p, q), None
            self._proofs.clear()

    def proof(self, run_hash: bytes) -> Sequence[Whole]:
        """Return the proof of the modulus for that run."""
        if run_hash not in self._proofs:
            self._proofs[run_hash] = prove(self.key, run_hash)
        return self._proofs[run_hash]

    @property
    def pool(self) -> NoisePool:
        """Noise that is made ahead."""
        if self._pool is None:
            self._pool = NoisePool(self.key)
        return self._pool
