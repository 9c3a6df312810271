"""Updates as whole numbers modulo 2^32, and the range that keeps their sum from wrapping round.

Factors add up to at most 1 and no update is longer than `bound`, so |sum| <= 2^30 + n/2 < 2^31.
"""

import math

import numpy as np
from numpy.typing import NDArray

from erosion.common.sealed.masks.mask import CHUNK, Words, chunks, norm_of

LARGEST = 2.0**30  # of a scaled value
STEPS = 4.0  # of an update's root mean square, so that it is not lost in rounding


def scale_for(own_norm: float, largest_distance: float) -> float:
    """2^30 / bound, with bound = 2^ceil(log2(1.25 |g_0| (1 + max d))).

    Only powers of two, so that a peer learns no more of |g_0| than about how large it is.
    """
    bound: float = 2.0 ** math.ceil(math.log2(1.25 * own_norm * (1 + largest_distance)))
    return LARGEST / bound


def fits(update: NDArray[np.float32], scale: float) -> bool:
    """Whether every value of the update is a number within the range."""
    largest = max(float(update.max(initial=0.0)), -float(update.min(initial=0.0)))
    return scale > 0 and largest * scale <= LARGEST  # never where one of them is NaN


def is_fine(update: NDArray[np.float32], scale: float, weight: float) -> bool:
    """Whether rounding leaves of an update with that weight what hides the others in a sum.

    In a range that is far too wide it rounds to zeros, and the sum is of the others alone. So its
    values must be STEPS whole numbers large, as a root mean square.
    """
    return norm_of(update) * weight * scale >= STEPS * math.sqrt(len(update))


class Encoder:
    """The nearest whole numbers to factor * scale * value, modulo 2^32, of updates that fit."""

    def __init__(self, factor: float, scale: float) -> None:
        """Of one hospital in one sum."""
        self._times = factor * scale
        self._wide = np.empty(CHUNK, np.float64)

    def encode(self, part: NDArray[np.float32], words: Words) -> None:
        """A part of an update, up to CHUNK values, into `words`, which is as long."""
        wide = self._wide[: len(part)]
        np.multiply(part, self._times, out=wide, dtype=np.float64)
        np.rint(wide, out=wide)
        words.view(np.int32)[:] = wide


def encode(update: NDArray[np.float32], factor: float, scale: float) -> Words:
    """A whole update: (dim,)."""
    words, encoder = np.empty(len(update), np.uint32), Encoder(factor, scale)
    for place in chunks(len(update)):
        encoder.encode(update[place], words[place])
    return words


def decode(words: Words, scale: float) -> NDArray[np.float32]:
    """The values of a sum whose masks are off: (dim,), in the memory of its words."""
    values, wide = words.view(np.float32), np.empty(CHUNK, np.float64)
    for place in chunks(len(words)):
        part = wide[: len(words[place])]
        np.multiply(words[place].view(np.int32), 1 / scale, out=part)  # a power of 2: exact
        values[place] = part
    return values
