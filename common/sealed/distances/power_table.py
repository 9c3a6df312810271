"""Many powers of one base: a table of what its digits stand for, made once, saves the squarings."""

from collections.abc import Callable

from gmpy2 import mpz

_WIDTH = 256  # a digit is a byte of the exponent


class PowerTable:
    """Powers of `base` modulo `modulus` for exponents of up to `num_bytes` bytes."""

    def __init__(self, base: mpz, modulus: mpz, num_bytes: int) -> None:
        """A few hundred multiplications for each byte."""
        self._modulus, self._num_bytes = modulus, num_bytes
        self._rows: list[list[mpz]] = []
        for _ in range(num_bytes):
            row = [mpz(1), base]
            for _ in range(_WIDTH - 2):
                row.append(row[-1] * base % modulus)
            self._rows.append(row)
            base = row[-1] * base % modulus

    def power(self, exponent: int) -> mpz:
        """base^exponent: a multiplication for each byte of the exponent."""
        total = mpz(1)
        digits = exponent.to_bytes(self._num_bytes, "little")
        for row, digit in zip(self._rows, digits, strict=True):
            total = total * row[digit] % self._modulus
        return total


def generator(prime: mpz, draw: Callable[[mpz], int]) -> mpz:
    """A number whose powers are all of 1 to prime - 1, as far as can be told.

    `draw` gives a random number from 1 to below its argument. Only small factors of prime - 1 are
    known. The powers miss any only where they miss those of a large factor: with a chance below
    1 in SEARCHED for each, and then nobody who does not know the prime can tell.
    """
    order = prime - 1
    small = [f for f in _primes(SEARCHED) if order % f == 0]
    while True:
        candidate = mpz(draw(prime))
        if all(pow(candidate, order // f, prime) != 1 for f in small):
            return candidate


SEARCHED = 1 << 16


def _primes(below: int) -> list[int]:
    """By Eratosthenes' sieve."""
    is_prime = bytearray([0, 0]) + bytearray([1]) * (below - 2)
    for number in range(2, int(below**0.5) + 1):
        if is_prime[number]:
            is_prime[number * number :: number] = bytes(len(is_prime[number * number :: number]))
    return [number for number, prime in enumerate(is_prime) if prime]
