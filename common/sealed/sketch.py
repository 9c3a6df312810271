"""CountSketch (Charikar et al. 2002): a long vector as few sums that keep its length on average."""

import numpy as np
from numpy.typing import NDArray

from erosion.common.sealed.masks import CHUNK, keystream

BUCKETS = 256  # k; vectors up to here stay as they are
_ZEROS = bytes(2 * CHUNK)


def is_exact(dim: int) -> bool:
    """Whether a vector of that length is its own sketch."""
    return dim <= BUCKETS


def sketch(vector: NDArray[np.float32], seed: bytes) -> NDArray[np.float64]:
    """S v: every value with a random sign in one of k random buckets; (k,), or v itself (dim,).

    The same seed gives the same signs and buckets everywhere.
    """
    if is_exact(len(vector)):
        return vector.astype(np.float64)
    stream = keystream(seed)
    sums = np.zeros(BUCKETS)
    for start in range(0, len(vector), CHUNK):
        part = vector[start : start + CHUNK].astype(np.float64)
        bits = np.frombuffer(stream.update(memoryview(_ZEROS)[: 2 * len(part)]), "<u2")
        np.negative(part, out=part, where=(bits >> 15).astype(bool))
        sums += np.bincount(bits & (BUCKETS - 1), weights=part, minlength=BUCKETS)
    return sums
