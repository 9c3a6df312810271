"""Norms, distances and sums of long float32 vectors: faster than float32, as true as float64.

Vectors are read together, block by block, so that the user's values are in the cache when
the others' are compared with them. Sums of squares are float32 over short pieces and float64 over
those: at 11 million values the relative error of a distance is below 1e-6, and no long buffer is
needed. Blocks in memory are shared out among threads; what they find is put together in the blocks'
order, so that the number of threads changes nothing.
"""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Values = NDArray[np.float32]
Block = tuple[slice, tuple[Tensor, ...]]  # a part of the vectors, and every vector's values there
B = TypeVar("B")
R = TypeVar("R")

# Wide blocks, because memory is read fastest in long runs; but a block of all vectors is at most
# half of one, so that a cohort on disk needs little memory.
FEWEST_VALUES, MOST_VALUES = 1 << 18, 1 << 22  # of all vectors together in a block
WIDEST = 1 << 19  # values of one vector in a block; 2 MiB
PIECE = 1 << 10  # values with squares added up in float32
FEW_VALUES = 1 << 12  # torch lets go of Python's lock, and with so few waits longer to have it back
MOST_THREADS = 4  # beyond, memory is what is waited for


def block_places(dim: int, num_vectors: int) -> Iterator[slice]:
    """Yield the parts into which `num_vectors` vectors of `dim` values are cut."""
    values = min(MOST_VALUES, max(FEWEST_VALUES, dim // 2))
    width = min(WIDEST, max(1, values // max(1, num_vectors)))
    for start in range(0, dim, width):
        yield slice(start, min(dim, start + width))


def norm(vector: Tensor | Values) -> float:
    """Return |v| of (dim,) float32, which may be read-only; infinite or NaN where a value is.

    One thread reads as fast as the memory gives it.
    """
    values = np.asarray(vector)
    parts = [values[at : at + WIDEST] for at in range(0, len(values), WIDEST)]
    return math.sqrt(sum(_squared_distances([part], None)[0] for part in parts))


def norms(blocks: Iterable[Block]) -> Tensor:
    """Return |v_i| of every vector: (num_vectors,) float64."""
    return _total(
        blocks, lambda block: _squared_distances([row.numpy() for row in block[1]], None)
    ).sqrt()


def own_norm_and_distances(blocks: Iterable[Block]) -> Tensor:
    """Return |v_0|, then |v_i - v_0| of every other vector: (num_vectors,) float64."""

    def work(block: Block) -> list[float]:
        own, *others = (row.numpy() for row in block[1])
        return _squared_distances([own], None) + _squared_distances(others, own)

    return _total(blocks, work).sqrt()


def distances_to(centre: Tensor, blocks: Iterable[Block]) -> Tensor:
    """Return |v_i - centre| of every vector: centre (dim,) -> (num_vectors,) float64."""

    def work(block: Block) -> list[float]:
        rows = [row.numpy() for row in block[1]]
        return _squared_distances(rows, centre[block[0]].numpy())

    return _total(blocks, work).sqrt()


def gram(blocks: Iterable[Block]) -> Tensor:
    """Return inner products of all vectors: (num_vectors, num_vectors) float64.

    The products are float64 too: a small distance between two long vectors is the difference of
    products that are nearly equal.
    """

    def work(block: Block) -> Tensor:
        matrix = torch.stack(block[1]).double()
        return matrix @ matrix.T

    return torch.stack(list(_each(blocks, work))).sum(dim=0)


def weighted_sum(
    blocks: Iterable[Block], weights: Sequence[float], dim: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Return the sum of weight times vector: (dim,) of `dtype`, which is the vectors'."""
    total = torch.empty(dim, dtype=dtype) if weights else torch.zeros(dim, dtype=dtype)

    def work(block: Block) -> None:
        place, rows = block
        part = torch.mul(rows[0], weights[0], out=total[place])
        for weight, row in zip(weights[1:], rows[1:], strict=True):
            part.add_(row, alpha=weight)

    for _ in _each(blocks, work):
        pass
    return total


def is_finite(vector: Tensor) -> bool:
    """Return whether no value is infinite or NaN: a sum would carry either on."""
    if len(vector) < FEW_VALUES:
        with np.errstate(over="ignore", invalid="ignore"):
            return math.isfinite(float(np.sum(vector.numpy(), dtype=np.float64)))
    if math.isfinite(float(vector.sum())):
        return True
    # Finite values too may add up to more than float32 holds, never to more than float64 does. In
    # parts: torch makes a float64 copy of what it adds up so.
    parts = (vector[at : at + WIDEST] for at in range(0, len(vector), WIDEST))
    return all(math.isfinite(float(part.sum(dtype=torch.float64))) for part in parts)


def _total(blocks: Iterable[Block], work: Callable[[Block], list[float]]) -> Tensor:
    """Return the sum over blocks of what `work` makes of each: float64."""
    return torch.tensor(list(_each(blocks, work)), dtype=torch.float64).sum(dim=0)


def _each(blocks: Iterable[B], work: Callable[[B], R]) -> Iterable[R]:
    """Return `work` of every block, in order.

    A list of blocks is shared out among threads. An iterator may overwrite a block to make the next
    one, so it is followed step by step.
    """
    if isinstance(blocks, list) and len(blocks) > 1:
        return _threads().map(work, blocks)
    return map(work, blocks)


@lru_cache(maxsize=1)
def _threads() -> ThreadPoolExecutor:
    available = len(os.sched_getaffinity(0))
    return ThreadPoolExecutor(min(MOST_THREADS, available), thread_name_prefix="vectors")


os.register_at_fork(after_in_child=_threads.cache_clear)  # threads are not inherited


def _squared_distances(rows: Sequence[Values], origin: Values | None) -> list[float]:
    """Return |v - origin|^2 of each row of a block (each (width,)); without an origin, from 0.

    Each piece's sum of squares is float32: short enough for an error below a millionth even where
    every rounding goes the same way. numpy's subtract and dot are a fifth faster than torch's on
    pieces of this length.
    """
    if not rows:
        return []
    width = len(rows[0])
    whole = width // PIECE * PIECE
    of_pieces = np.empty((len(rows), whole // PIECE + 1), np.float32)
    buffer = np.empty(width if origin is not None else 0, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for row, sums in zip(rows, of_pieces, strict=True):
            values = row if origin is None else np.subtract(row, origin, out=buffer)
            pieces, rest = values[:whole].reshape(-1, PIECE), values[whole:]
            np.vecdot(pieces, pieces, out=sums[:-1])
            sums[-1] = np.dot(rest, rest)
        squares: list[float] = of_pieces.sum(axis=1, dtype=np.float64).tolist()
        return [
            square if math.isfinite(square) else _wide(row, origin)
            for square, row in zip(squares, rows, strict=True)
        ]


def _wide(row: Values, origin: Values | None) -> float:
    """Return the same in float64: a square overflowed, or a value is not finite."""
    wide = row.astype(np.float64) - (0.0 if origin is None else origin)
    return float(np.dot(wide, wide))
