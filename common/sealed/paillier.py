"""Paillier encryption (1999): whole numbers that others can add up and multiply without reading."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import gmpy2
from cryptography.hazmat.primitives.asymmetric import rsa
from gmpy2 import mpz

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

    def noise(self) -> mpz:
        """r^n mod n^2 of a random r, many times faster than without the primes.

        Modulo p^2 it is x^p of x = r^q mod p, which is as random as r is: an exponent of half the
        length.
        """
        p, q = self.p, self.q
        by_p = gmpy2.powmod(_random_below(p), p, p**2)
        by_q = gmpy2.powmod(_random_below(q), q, q**2)
        return by_q + q**2 * ((by_p - by_q) * self.q_inverse % p**2)

    def decrypt(self, ciphertext: mpz) -> int:
        """The message, from 0 to n - 1."""
        p, q = self.p, self.q
        by_p = (gmpy2.powmod(ciphertext, p - 1, p**2) - 1) // p * self.h_p % p
        by_q = (gmpy2.powmod(ciphertext, q - 1, q**2) - 1) // q * self.h_q % q
        return int(by_p + p * ((by_q - by_p) * self.p_inverse % q))


def new_private_key(bits: int = MODULUS_BITS) -> PrivateKey:
    """A fresh key."""
    numbers = rsa.generate_private_key(public_exponent=65537, key_size=bits).private_numbers()
    p, q = mpz(numbers.p), mpz(numbers.q)
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
    """prod base^exponent mod modulus for whole exponents; negative ones invert, all at once.

    Straus's method: all powers share their squarings, four bits at a time.
    """
    upper = [(b, e) for b, e in zip(bases, exponents, strict=True) if e > 0]
    lower = [(b, -e) for b, e in zip(bases, exponents, strict=True) if e < 0]
    total = _straus(upper, modulus)
    if lower:
        total = total * gmpy2.invert(_straus(lower, modulus), modulus) % modulus
    return total


def _straus(powers: Sequence[tuple[mpz, int]], modulus: mpz) -> mpz:
    width = 4
    num_digits = -(-max((e.bit_length() for _, e in powers), default=0) // width)
    tables = [_powers_of(base, (1 << width) - 1, modulus) for base, _ in powers]
    total = mpz(1)
    for place in reversed(range(num_digits)):
        for _ in range(width):
            total = total * total % modulus
        for (_, exponent), table in zip(powers, tables, strict=True):
            digit = (exponent >> (width * place)) & ((1 << width) - 1)
            if digit:
                total = total * table[digit] % modulus
    return total


def _powers_of(base: mpz, highest: int, modulus: mpz) -> list[mpz]:
    powers = [mpz(1)]
    for _ in range(highest):
        powers.append(powers[-1] * base % modulus)
    return powers


def _random_below(n: mpz) -> int:
    return secrets.randbelow(int(n) - 1) + 1
