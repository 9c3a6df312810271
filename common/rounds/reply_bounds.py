"""The most bytes of arrays that an honest answer can have; more from a site ends its stream."""

from math import prod

from erosion.common.algorithms.base import Brings, TensorTerms

FLOAT_BYTES = 4
FRAMING_BYTES = 64  # of an array: where the next one begins, and the last block of compressed ones


def most_update_bytes(dim: int) -> int:
    """Of a vector (dim,) of float32, or of its compressed form: codes, and a scale for a block."""
    return FLOAT_BYTES * dim + 2 * FRAMING_BYTES


def most_reply_bytes(brings: Brings, dim: int) -> int:
    """Of an answer that brings this, where the model has `dim` parameters."""
    update = most_update_bytes(dim) if brings.update else 0
    tensors = (*brings.tensors.values(), *brings.optional.values())
    return update + sum(_bytes_of(terms) + FRAMING_BYTES for terms in tensors)


def _bytes_of(terms: TensorTerms) -> int:
    lengths = [length for length in terms.shape if length is not None]
    values = prod(lengths) if len(lengths) == len(terms.shape) else terms.most_values
    return values * terms.dtype.itemsize
