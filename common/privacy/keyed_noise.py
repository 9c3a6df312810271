"""Gaussian noise that only who has the key can repeat, and the sum that it is added to.

The noise comes from the AES-256-CTR keystream of a key, not from torch's generator: that one is
seeded with 32 bits, which can all be tried out.
"""

import math

import numpy as np
from numpy.typing import NDArray

from erosion.common.sealed.masks.mask import keystream

Floats = NDArray[np.float64]

_PAIRS = 1 << 16  # of numbers that are made at a time
_GRID_BITS = 20  # a noised sum is told to this many bits below the noise's deviation


def gaussian(key: bytes, count: int) -> Floats:
    """`count` independent standard normal numbers of a key of 32 bytes (Box and Muller, 1958)."""
    stream = keystream(key)
    pairs = -(-count // 2)
    drawn = np.empty(2 * pairs)
    for start in range(0, pairs, _PAIRS):
        size = min(_PAIRS, pairs - start)
        words = np.frombuffer(stream.update(bytes(16 * size)), "<u8").reshape(size, 2)
        uniform = ((words >> np.uint64(11)) + np.float64(1.0)) * 2.0**-53  # from (0, 1]
        radius, angle = np.sqrt(-2 * np.log(uniform[:, 0])), 2 * np.pi * uniform[:, 1]
        part = drawn[2 * start : 2 * (start + size)]
        part[0::2], part[1::2] = radius * np.cos(angle), radius * np.sin(angle)
    return drawn[:count]


def with_noise(total: Floats, deviation: float, key: bytes) -> Floats:
    """`total` (dim,) and noise of this deviation, on a grid.

    The last bits of a float64 sum would tell what was added to the noise (Mironov, On Significance
    of the Least Significant Bits for Differential Privacy, 2012), so they are rounded away.
    """
    grid = 2.0 ** (math.floor(math.log2(deviation)) - _GRID_BITS)
    noised: Floats = np.rint((total + deviation * gaussian(key, len(total))) / grid) * grid
    return noised
