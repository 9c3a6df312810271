"""CountSketch (Charikar et al. 2002): a long vector as few sums that keep its length on average."""

import numpy as np
from numpy.typing import NDArray

from erosion.common.sealed.masks.mask import CHUNK, chunks, keystream

BUCKETS = 256  # k, a power of 2; vectors up to here stay as they are
_ZEROS = memoryview(bytes(2 * CHUNK))


def is_exact(dim: int) -> bool:
    """Whether a vector of that length is its own sketch."""
    return dim <= BUCKETS


def sketch(vector: NDArray[np.float32], seed: bytes) -> NDArray[np.float64]:
    """S v: every value with a random sign in one of k random buckets; (k,), or v itself (dim,).

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
        stream.update_into(_ZEROS[: 2 * len(part)], buffer)
        chosen = choices[: len(part)]
        np.bitwise_and(bits[: len(part)], 2 * BUCKETS - 1, out=chosen, casting="unsafe")
        sums += np.bincount(chosen, weights=part, minlength=2 * BUCKETS)
    return sums[:BUCKETS] - sums[BUCKETS:]
