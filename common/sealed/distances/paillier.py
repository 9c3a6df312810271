"""Paillier encryption (1999): whole numbers that others can add up and multiply without reading."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import gmpy2
from cryptography.hazmat.primitives.asymmetric import rsa
from gmpy2 import mpz

from erosion.common.sealed.distances.power_table import PowerTable, generator

MODULUS_BITS = 3072


@dataclass(frozen=True, slots=True)
class PublicKey:
    """n, under which everybody can encrypt."""

    n: mpz

    @property
    def modulus_bytes(self) -> int:
        """Length of n; a ciphertext is twice as long."""
        num_bits: int = self.n.bit_length()
        return (num_bits + 7) // 8

    def encrypt(self, message: int, noise: mpz) -> mpz:
        """(1 + n)^m noise mod n^2; the noise is r^n mod n^2 of a random r, used once."""
        return (1 + message % self.n * self.n) * noise % self.n**2

    def noise(self) -> mpz:
        """r^n mod n^2 of a random r."""
        return gmpy2.powmod(_random_below(self.n), self.n, self.n**2)


@dataclass(frozen=True, slots=True, repr=False)
class PrivateKey:
    """The primes of n, and what decrypting by the Chinese remainder theorem needs of them."""

    p: mpz
    q: mpz
    h_p: mpz  # 1 / L_p((1 + n)^(p - 1)) mod p
    h_q: mpz
    q_inverse: mpz  # 1 / q^2 mod p^2
    p_inverse: mpz  # 1 / p mod q

    @property
    def public(self) -> PublicKey:
        """Its public half."""
        return PublicKey(self.p * self.q)

    def decrypt(self, ciphertext: mpz) -> int:
        """The message, from 0 to n - 1."""
        p, q = self.p, self.q
        by_p = (gmpy2.powmod(ciphertext, p - 1, p**2) - 1) // p * self.h_p % p
        by_q = (gmpy2.powmod(ciphertext, q - 1, q**2) - 1) // q * self.h_q % q
        return int(by_p + p * ((by_q - by_p) * self.p_inverse % q))


class NoiseMaker:
    """r^n mod n^2 of a random r, thirty times faster than without the primes.

    Modulo p^2 the n-th powers are the p - 1 powers of one of them, g^p of a generator g modulo p. A
    random one is that to a random exponent, which a table gives without squarings; likewise q.
    """

    def __init__(self, key: PrivateKey) -> None:
        """Makes both tables: 38 MB for a modulus of 3072 bits."""
        self._key = key
        self._tables = [(f, _table(f)) for f in (key.p, key.q)]

    def make(self) -> mpz:
        """A fresh one."""
        key = self._key
        by_p, by_q = (table.power(_random_below(f)) for f, table in self._tables)
        return by_q + key.q**2 * ((by_p - by_q) * key.q_inverse % key.p**2)


def new_private_key(bits: int = MODULUS_BITS) -> PrivateKey:
    """A fresh key."""
    numbers = rsa.generate_private_key(public_exponent=65537, key_size=bits).private_numbers()
    return private_key_of(mpz(numbers.p), mpz(numbers.q))


def private_key_of(p: mpz, q: mpz) -> PrivateKey:
    """The key with these primes."""
    n = p * q
    return PrivateKey(
        p=p,
        q=q,
        h_p=gmpy2.invert((gmpy2.powmod(1 + n, p - 1, p**2) - 1) // p, p),
        h_q=gmpy2.invert((gmpy2.powmod(1 + n, q - 1, q**2) - 1) // q, q),
        q_inverse=gmpy2.invert(q**2, p**2),
        p_inverse=gmpy2.invert(p, q),
    )


def product_of_powers(bases: Sequence[mpz], exponents: Sequence[int], modulus: mpz) -> mpz:
    """prod base^exponent mod modulus for whole exponents; negative ones invert, all at once."""
    upper = [(b, e) for b, e in zip(bases, exponents, strict=True) if e > 0]
    lower = [(b, -e) for b, e in zip(bases, exponents, strict=True) if e < 0]
    total = _in_buckets(upper, modulus)
    if lower:
        total = total * gmpy2.invert(_in_buckets(lower, modulus), modulus) % modulus
    return total


def _in_buckets(powers: Sequence[tuple[mpz, int]], modulus: mpz) -> mpz:
    """Pippenger's method: bases with the same digit are multiplied before they are raised to it."""
    width = 5 if len(powers) >= 32 else 3  # bits of a digit
    num_digits = -(-max((e.bit_length() for _, e in powers), default=0) // width)
    total = mpz(1)
    for place in reversed(range(num_digits)):
        for _ in range(width):
            total = total * total % modulus
        buckets: dict[int, mpz] = {}
        for base, exponent in powers:
            if digit := (exponent >> (width * place)) & ((1 << width) - 1):
                known = buckets.get(digit)
                buckets[digit] = base if known is None else known * base % modulus
        # bucket_d^d over all d is the product, over d downwards, of what came so far
        so_far = mpz(1)
        for digit in range((1 << width) - 1, 0, -1):
            if digit in buckets:
                so_far = so_far * buckets[digit] % modulus
            total = total * so_far % modulus
    return total


def _table(prime: mpz) -> PowerTable:
    base = gmpy2.powmod(generator(prime, _random_below), prime, prime**2)
    return PowerTable(base, prime**2, (prime.bit_length() + 7) // 8)


def _random_below(n: mpz) -> int:
    return secrets.randbelow(int(n) - 1) + 1
