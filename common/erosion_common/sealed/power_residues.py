"""Numbers modulo 2^64 that others can add up and multiply without reading (Joye & Libert 2013).

n = p q with p = 2^64 t + 1, t odd, and q = 3 modulo 4; y is a square modulo neither. A number m is
sealed as y^m x^(2^64) mod n, x random: who cannot tell squares modulo n cannot tell any two apart.
Modulo p the t-th power of that is (y^t)^m, of order 2^64, which gives m eight bits at a time.

A key comes with a proof that an answer shows 63 bits and no more. An answer is a square times a
random 2^64-th power: of each prime of n it shows 63 bits at most, and none where -1 is no square.
Since n is 3 modulo 4, of two primes -1 is a square modulo one. That n has only two is proved by
roots: +-1 and +-y times the squares are then all numbers; with a third prime, at most half of them.
"""

import hashlib
import heapq
import itertools
import logging
import math
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache

import torch
from torch import Tensor

from erosion_common.sealed.keys import digest
from erosion_common.support.keys import PublicKey
from erosion_common.support.software import install_command

logger = logging.getLogger("erosion.sealed")

Whole = int  # or gmpy2's mpz, which computes as an int does, several times as fast

try:
    import gmpy2
except ModuleNotFoundError:  # the extra `sealed`
    gmpy2 = None
_whole: Callable[[int], Whole] = gmpy2.mpz if gmpy2 else int
_power: Callable[[Whole, Whole, Whole], Whole] = gmpy2.powmod if gmpy2 else pow

MODULUS_BITS = 3072
MESSAGE_BITS = 64  # k of the paper; half the bits of p would have to be known to find it
_ALL = 1 << MESSAGE_BITS  # 2^64


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


@dataclass(frozen=True, slots=True)
class ResidueKey:
    """n and y, under which everybody can seal."""

    n: Whole
    y: Whole

    @property
    def modulus_bytes(self) -> int:
        """Length of n, and of what is sealed."""
        return (self.n.bit_length() + 7) // 8

    def seal(self, message: int) -> Whole:
        """Return y^m x^(2^64) mod n of a random x; of the message m its lowest 64 bits."""
        _say_if_slow()
        hiding = _power(_random_below(self.n), _ALL, self.n)
        return _power(self.y, message % _ALL, self.n) * hiding % self.n


@dataclass(frozen=True, repr=False)
class ResiduePrivateKey:
    """The primes of n."""

    p: Whole
    q: Whole

    @cached_property
    def public(self) -> ResidueKey:
        """Its public half; y follows from the primes, and looks random to others."""
        draws = _stream(digest("y", to_bytes(self.p), to_bytes(self.q)), self.p * self.q)
        y = next(y for y in draws if not (_is_square(y, self.p) or _is_square(y, self.q)))
        return ResidueKey(self.p * self.q, y)

    def seal(self, message: int) -> Whole:
        """Return the same as the public half, many times as fast with a power made ahead."""
        _say_if_slow()
        by_p, by_q = self._hiding.pop() if self._hiding else self._random_power()
        message = (message + _ALL // 2) % _ALL - _ALL // 2  # small numbers have few digits
        tables = self._of_base[message < 0]
        for powers, digit in zip(tables, abs(message).to_bytes(8, "little"), strict=True):
            if digit:
                by_p = by_p * powers[digit] % self.p
        if message % 2:  # modulo q the 2^64-th powers are all squares, and y counts by being none
            by_q = by_q * self.public.y % self.q
        return self._joined(by_p, by_q)

    def make_ahead(self, number: int) -> None:
        """Keep `number` random powers in memory; each is used for one message."""
        if gmpy2:  # let other threads run meanwhile
            gmpy2.get_context().allow_release_gil = True
        hiding, _ = self._hiding, self._of_base
        while len(hiding) < number:
            hiding.append(self._random_power())

    def _random_power(self) -> tuple[Whole, Whole]:
        return _power(_random_below(self.p), _ALL, self.p), _random_below(self.q) ** 2 % self.q

    @cached_property
    def _hiding(self) -> list[tuple[Whole, Whole]]:
        """2^64-th powers, modulo p and modulo q, that hide nothing yet."""
        return []

    @cached_property
    def _of_base(self) -> tuple[list[list[Whole]], list[list[Whole]]]:
        """y^(256^i * digit) modulo p, for each byte i of a message and each digit; 1/y's, too."""
        tables: tuple[list[list[Whole]], list[list[Whole]]] = [], []
        for table, base in zip(
            tables, (self.public.y, pow(self.public.y, -1, self.p)), strict=True
        ):
            for _ in range(MESSAGE_BITS // 8):
                table.append([_whole(1)])
                for _ in range(256):
                    table[-1].append(table[-1][-1] * base % self.p)
                base = table[-1].pop()
        return tables

    def open(self, sealed: Whole) -> int:
        """Return the message, from 0 to 2^64 - 1."""
        return self._logarithm(_power(sealed, self._odd, self.p))

    def root(self, number: Whole) -> Whole:
        """Return a square root of this number, or of minus it, times y or not: always the same."""
        p, q = self.p, self.q
        halved = _power(number, self._odd // 2, p)  # number^((t - 1) / 2)
        logarithm = self._logarithm(halved * halved * number % p)
        by_p = halved * number % p  # its square is number * (y^t)^logarithm
        if logarithm % 2:
            number = number * self.public.y
            by_p = by_p * _power(self.public.y, (self._odd + 1) // 2, p) % p
            logarithm += 1
        by_q = _power(number, (q + 1) // 4, q)
        if (by_q * by_q - number) % q:  # then of minus it, which modulo p is (y^t)^(2^63) times it
            logarithm += _ALL // 2
        by_p = by_p * _power(self._of_order, -(logarithm // 2), p) % p
        # Which of the four roots says nothing of the primes, and does not change.
        signs = digest("signs", to_bytes(p), to_bytes(q), to_bytes(number))[0]
        return self._joined(by_p if signs & 1 else p - by_p, by_q if signs & 2 else q - by_q)

    def _joined(self, by_p: Whole, by_q: Whole) -> Whole:
        return by_q + self.q * ((by_p - by_q) * self._q_inverse % self.p)

    def _logarithm(self, power: Whole) -> int:
        """Return e of (y^t)^e modulo p, from its lowest byte upwards."""
        found, p = 0, self.p
        for place, undo in enumerate(self._undo):
            last = _power(power, 1 << (MESSAGE_BITS - 8 * (place + 1)), p)
            digit = self._bytes[last]
            power = power * _power(undo, digit, p) % p
            found += digit << (8 * place)
        return found

    @cached_property
    def _odd(self) -> Whole:
        return self.p >> MESSAGE_BITS  # t

    @cached_property
    def _q_inverse(self) -> Whole:
        return pow(self.q, -1, self.p)

    @cached_property
    def _of_order(self) -> Whole:
        return _power(self.public.y, self._odd, self.p)

    @cached_property
    def _undo(self) -> list[Whole]:
        """(y^t)^-(256^i), for each byte i."""
        inverse = pow(self._of_order, -1, self.p)
        return [_power(inverse, 1 << (8 * place), self.p) for place in range(MESSAGE_BITS // 8)]

    @cached_property
    def _bytes(self) -> dict[Whole, int]:
        """A byte by the number of order 256 to its power."""
        base = _power(self._of_order, 1 << (MESSAGE_BITS - 8), self.p)
        return {_power(base, digit, self.p): digit for digit in range(256)}


def new_private_key(bits: int = MODULUS_BITS) -> ResiduePrivateKey:
    """Return a fresh key."""
    p = _new_prime(bits // 2, _ALL + 1, MESSAGE_BITS + 1)
    return ResiduePrivateKey(p, _new_prime(bits // 2, 3, 2))


def _new_prime(bits: int, lowest: int, num_lowest: int) -> Whole:
    """Return a random prime with these lowest bits; its highest two are 1."""
    while True:
        drawn = secrets.randbits(bits - num_lowest) << num_lowest
        candidate = _whole(drawn | lowest | 3 << (bits - 2))
        if math.gcd(int(candidate), _small_primes()) == 1 and _is_prime(candidate):
            return candidate


def _is_prime(odd: Whole) -> bool:
    """Return whether a random number is prime, by Miller and Rabin with 40 random bases."""
    twos = int((odd - 1) & -(odd - 1)).bit_length() - 1
    for _ in range(40):
        power = _power(_random_below(odd), odd >> twos, odd)
        if power in (1, odd - 1):
            continue
        for _ in range(twos - 1):
            power = power * power % odd
            if power == odd - 1:
                break
        else:
            return False
    return True


SMALLEST_FACTOR = 1 << 13  # n has none below: modulo such a one, too many numbers have roots


@cache
def _small_primes() -> int:
    """Return the product of all below SMALLEST_FACTOR."""
    is_prime = bytearray([0, 0]) + bytearray([1]) * (SMALLEST_FACTOR - 2)
    for number in range(2, math.isqrt(SMALLEST_FACTOR) + 1):
        is_prime[2 * number :: number] = bytes(len(is_prime[2 * number :: number]))
    return math.prod(number for number, prime in enumerate(is_prime) if prime)


def _is_square(number: Whole, prime: Whole) -> bool:
    return _power(number, prime // 2, prime) == 1


def _random_below(n: Whole) -> Whole:
    # 128 bits longer than n, so that remainders are as good as uniform.
    return from_bytes(secrets.token_bytes(n.bit_length() // 8 + 17)) % (n - 1) + 1


def product_of_powers(bases: Sequence[Whole], exponents: Sequence[int], modulus: Whole) -> Whole:
    """Return prod base^exponent mod modulus, for bases that have inverses.

    Of the two largest exponents the smaller is taken from the larger (Bos and Coster): a^e b^f is
    a^(e mod f) (b a^(e // f))^f. Each step takes a bit off an exponent or more, so that none takes
    long. Bases with a negative one are in a divisor.
    """
    sides: list[Whole] = []  # the product, and its divisor
    for sign in (1, -1):
        raised = list(bases)
        left = [(-sign * e, place) for place, e in enumerate(exponents) if sign * e > 0]
        heapq.heapify(left)
        while len(left) > 1:
            largest, place = left[0]
            second, other = min(left[1:3])
            times, rest = divmod(largest, second)
            power = raised[place] if times == 1 else _power(raised[place], times, modulus)
            raised[other] = raised[other] * power % modulus
            if rest:
                heapq.heapreplace(left, (rest, place))
            else:
                heapq.heappop(left)
        sides.append(_power(raised[left[0][1]], -left[0][0], modulus) if left else _whole(1))
    return sides[0] * pow(sides[1], -1, modulus) % modulus


def to_rows(numbers: Sequence[Whole], num_bytes: int) -> Tensor:
    """Return (len(numbers), num_bytes) uint8, the most significant byte first."""
    content = b"".join(to_bytes(number, num_bytes) for number in numbers)
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).reshape(-1, num_bytes)


def from_rows(rows: Tensor) -> list[Whole]:
    """Return the numbers of (n, num_bytes) uint8."""
    content, step = rows.numpy().tobytes(), max(1, rows.shape[1])
    return [from_bytes(content[at : at + step]) for at in range(0, len(content), step)]


NUM_ROOTS = 128  # with a third prime, each exists with a chance of a half
FEWEST_BITS, MOST_BITS = 2048, 4096


def prove(key: ResiduePrivateKey, run_hash: bytes) -> list[Whole]:
    """Return the roots of the key's challenges, which are of one run."""
    return [key.root(challenge) for challenge in _challenges(key.public, run_hash)]


def problem_with_key(key: ResidueKey, roots: Sequence[Whole], run_hash: bytes) -> str | None:
    """Return why nothing must be sealed under the key in that run, or None."""
    return _problem(key, tuple(roots), run_hash)


@lru_cache(maxsize=16)  # a run's key comes with every round
def _problem(key: ResidueKey, roots: tuple[Whole, ...], run_hash: bytes) -> str | None:
    n, y = key.n, key.y
    if not FEWEST_BITS <= n.bit_length() <= MOST_BITS:
        return f"a modulus of {n.bit_length()} bits, expected {FEWEST_BITS} to {MOST_BITS}"
    if n % 4 != 3:
        return f"a modulus that is {n % 4} modulo 4, expected 3"
    if math.gcd(int(n), _small_primes()) != 1:
        return "a modulus with a small factor"
    if not 0 < y < n or math.gcd(int(y), int(n)) != 1:
        return "a base that is none"
    if len(roots) != NUM_ROOTS or not all(
        root * root % n in (number, n - number, number * y % n, -number * y % n)
        for root, number in zip(roots, _challenges(key, run_hash), strict=True)
    ):
        return "a modulus with a proof that does not hold"
    return None


def _challenges(key: ResidueKey, run_hash: bytes) -> list[Whole]:
    stream = _stream(digest("modulus", run_hash, to_bytes(key.n), to_bytes(key.y)), key.n)
    return [next(stream) for _ in range(NUM_ROOTS)]


def _stream(seed: bytes, n: Whole) -> Iterator[Whole]:
    """Yield numbers below n that follow from the seed."""
    num_bytes = n.bit_length() // 8 + 17  # so long that remainders are as good as uniform
    for number in itertools.count():
        content = hashlib.shake_256(seed + number.to_bytes(4)).digest(num_bytes)
        yield from_bytes(content) % n


class CoordinatorKeys:
    """Made when they are first needed."""

    def __init__(
        self,
        make: Callable[[], ResiduePrivateKey] = new_private_key,
        sites: Callable[[], Mapping[str, PublicKey]] = dict,
    ) -> None:
        """`make` gives the key, `sites` the hospitals' node keys as far as they are enrolled."""
        self._make, self.sites = make, sites
        self._key: ResiduePrivateKey | None = None
        self._proofs: dict[bytes, Sequence[Whole]] = {}

    @property
    def key(self) -> ResiduePrivateKey:
        """It stays in this process."""
        if self._key is None:
            self._key = self._make()
        return self._key

    def resume(self, p: Whole, q: Whole) -> None:
        """Use the key of a resumed run."""
        if self._key is None or (self._key.p, self._key.q) != (p, q):
            self._key = ResiduePrivateKey(p, q)
            self._proofs.clear()

    def make_ahead(self, number: int, run_hash: bytes) -> None:
        """Prepare a question of `number` values: the key, its proof, and the random powers."""
        self.key.make_ahead(number)
        self.proof(run_hash)

    def proof(self, run_hash: bytes) -> Sequence[Whole]:
        """Return the proof of the modulus for that run."""
        if run_hash not in self._proofs:
            self._proofs[run_hash] = prove(self.key, run_hash)
        return self._proofs[run_hash]
