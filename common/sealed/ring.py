"""Updates as whole numbers modulo 2^32, and the range that keeps their sum from wrapping round.

Factors add up to at most 1 and no update is longer than `bound`, so |sum| <= 2^30 + n/2 < 2^31.
"""

import math

import numpy as np
from numpy.typing import NDArray

from erosion.common.sealed.masks import CHUNK, Words

LARGEST = 2.0**30  # of a scaled value


def scale_for(own_norm: float, largest_distance: float) -> float:
    """2^30 / bound, with bound = 2^ceil(log2(1.25 |g_0| (1 + max d))).

    Only powers of two, so that a peer learns no more of |g_0| than about how large it is.
    """
    bound: float = 2.0 ** math.ceil(math.log2(1.25 * own_norm * (1 + largest_distance)))
    return LARGEST / bound


def fits(update: NDArray[np.float32], scale: float) -> bool:
    """Whether every value of the update is within the range."""
    return float(np.abs(update).max(initial=0.0)) * scale <= LARGEST


def encode(update: NDArray[np.float32], factor: float, scale: float) -> Words:
    """The nearest whole number to factor * scale * value, modulo 2^32: (dim,)."""
    words = np.empty(len(update), np.uint32)
    for start in range(0, len(update), CHUNK):
        part = update[start : start + CHUNK].astype(np.float64)
        scaled = np.rint(part * (factor * scale))
        words[start : start + CHUNK] = scaled.astype(np.int64).astype(np.uint32)
    return words


def decode(words: Words, scale: float) -> NDArray[np.float64]:
    """The values of a sum whose masks are off: (dim,)."""
    values: NDArray[np.float64] = words.view(np.int32) / scale
    return values
