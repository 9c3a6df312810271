"""Long vectors: masks modulo 2^32, updates as whole numbers, and sketches of a few sums.

Factors add up to at most 1 and no update is longer than `bound`, so |sum| <= 2^30 + n/2 < 2^31: it
does not wrap round.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

from erosion_common.aggregation.vectors import norm

Words = NDArray[np.uint32]  # numbers modulo 2^32

CHUNK = 1 << 16  # words at a time: 256 KiB, so that words and masks stay in the cache
_BLOCK = 16  # bytes of AES; the cipher wants room for all but one of them behind what it writes
_ZEROS = memoryview(bytes(4 * CHUNK))


def keystream(key: bytes) -> CipherContext:
    """Return the stream of a key from its beginning: IV 0, because a key is used once."""
    return Cipher(algorithms.AES(key), modes.CTR(bytes(_BLOCK))).encryptor()


def chunks(length: int) -> Iterator[slice]:
    """Yield the places of a long vector's parts."""
    for start in range(0, length, CHUNK):
        yield slice(start, min(length, start + CHUNK))


def wide_chunks(length: int) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    """Yield the same, each with as many values to compute in: in one memory, which is faster."""
    wide = np.empty(min(length, CHUNK))
    for place in chunks(length):
        yield place, wide[: place.stop - place.start]


def norm_of(vector: NDArray[np.floating[Any]]) -> float:
    """Return |v| of (dim,), added up in float64 without a copy of it."""
    square = 0.0
    for place, part in wide_chunks(len(vector)):
        part[:] = vector[place]
        square += float(np.dot(part, part))
    return math.sqrt(square)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Mask:
    """A mask that is added, or taken off."""

    key: bytes
    sign: int  # +1: it is added; -1: it is taken off


def apply_masks(words: Words, masks: Sequence[Mask], places: Iterable[slice] | None = None) -> None:
    """All masks from their beginnings, in place and in one pass.

    `places`: of all of `chunks`, each taken before the words there are used.
    """
    streams = [(keystream(mask.key), mask.sign) for mask in masks]
    buffer = bytearray(4 * CHUNK + _BLOCK - 1)  # of one mask at a time, so that it stays in cache
    drawn = np.frombuffer(buffer, "<u4", CHUNK)
    for place in chunks(len(words)) if places is None else places:
        part = words[place]
        for stream, sign in streams:
            stream.update_into(_ZEROS[: 4 * len(part)], buffer)
            apply = np.add if sign > 0 else np.subtract
            apply(part, drawn[: len(part)], out=part)


LARGEST = 2.0**30  # of a scaled value
STEPS = 4.0  # of an update's root mean square, so that it is not lost in rounding


def scale_for(own_norm: float, largest_distance: float) -> float:
    """Return 2^30 / 2^ceil(log2(1.25 |g_0| (1 + max d))): a power of two says little of |g_0|."""
    bound: float = 2.0 ** math.ceil(math.log2(1.25 * own_norm * (1 + largest_distance)))
    return LARGEST / bound


def fits_range(update: NDArray[np.float32], scale: float) -> bool:
    """Return whether every value of the update is a number within the range."""
    largest = max(float(update.max(initial=0.0)), -float(update.min(initial=0.0)))
    return scale > 0 and largest * scale <= LARGEST  # never where one of them is NaN


def hides_others(update: NDArray[np.float32], scale: float, weight: float) -> bool:
    """Return whether rounding leaves of an update with that weight what hides the others in a sum.

    In a range that is far too wide it rounds to zeros, and the sum is of the others alone. So its
    values must be STEPS whole numbers large, as a root mean square.
    """
    return norm(update) * weight * scale >= STEPS * math.sqrt(len(update))


def encode(values: NDArray[np.float32], times: float, words: Words) -> Iterator[slice]:
    """Put the nearest whole numbers to times * value, modulo 2^32, into `words`, part by part.

    Yields each part's place; the values are in the range.
    """
    for place, wide in wide_chunks(len(values)):
        np.multiply(values[place], times, out=wide, dtype=np.float64)
        words[place].view(np.int32)[:] = np.rint(wide, out=wide)
        yield place


def decode_sum(words: Words, scale: float) -> NDArray[np.float32]:
    """Return the values of an unmasked sum: (dim,), in the memory of its words."""
    values = words.view(np.float32)
    for place, part in wide_chunks(len(words)):
        np.multiply(words[place].view(np.int32), 1 / scale, out=part)  # a power of 2: exact
        values[place] = part
    return values


BUCKETS = 256  # k, a power of 2; vectors up to here stay as they are
_ZERO_PAIRS = memoryview(bytes(2 * CHUNK))


def is_exact(dim: int) -> bool:
    """Return whether a vector of that length is its own sketch."""
    return dim <= BUCKETS


def sketch(vector: NDArray[np.float32], seed: bytes) -> NDArray[np.float64]:
    """Return S v: each value, with a random sign, in one of k random buckets; (k,), or v (dim,).

    The same seed gives the same signs and buckets everywhere: each value has 16 bits of the seed's
    stream, of which the lowest eight are its bucket and the next its sign.
    """
    if is_exact(len(vector)):
        return vector.astype(np.float64)
    stream = keystream(seed)
    buffer = bytearray(2 * CHUNK + 15)
    bits, choices = np.frombuffer(buffer, "<u2", CHUNK), np.empty(CHUNK, np.intp)
    sums = np.zeros(2 * BUCKETS)  # of those with either sign
    for place in chunks(len(vector)):
        part = vector[place]
        stream.update_into(_ZERO_PAIRS[: 2 * len(part)], buffer)
        chosen = choices[: len(part)]
        np.bitwise_and(bits[: len(part)], 2 * BUCKETS - 1, out=chosen, casting="unsafe")
        sums += np.bincount(chosen, weights=part, minlength=2 * BUCKETS)
    return sums[:BUCKETS] - sums[BUCKETS:]
