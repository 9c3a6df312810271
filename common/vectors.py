"""Norms, distances and sums of long float32 vectors: faster than float32, as true as float64.

Vectors are gone through together, block by block. A block of all of them fits into the cache, so
each value is fetched once for all that is asked of it; its float32 sums are short, and the blocks'
sums are added up in float64. At 11 million values the relative error of a distance is below 1e-6.
Blocks in memory are shared out among threads; results are put together in the blocks' order, so
the number of threads changes nothing.
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
R = TypeVar("R")

# Wide blocks, because threads have to take turns between two operations; but a block of all vectors
# is a quarter of one, so that a cohort on disk needs little memory.
FEWEST_VALUES, MOST_VALUES = 1 << 18, 1 << 22  # of all vectors together in a block
WIDEST = 1 << 19  # values of one vector in a block; 2 MiB
MOST_THREADS = 4  # beyond, memory is what is waited for


def block_places(dim: int, num_vectors: int) -> Iterator[slice]:
    """The parts into which `num_vectors` vectors of `dim` values are cut."""
    values = min(MOST_VALUES, max(FEWEST_VALUES, dim // 4))
    width = min(WIDEST, max(1, values // max(1, num_vectors)))
    for start in range(0, dim, width):
        yield slice(start, min(dim, start + width))


def blocks_of(vectors: Sequence[Tensor]) -> list[Block]:
    """Vectors (dim,) in memory as blocks of views."""
    return [
        (place, tuple(vector[place] for vector in vectors))
        for place in block_places(len(vectors[0]), len(vectors))
    ]


def norm(vector: Tensor) -> float:
    """|v| of (dim,) float32; infinite or NaN where a value is."""
    return math.sqrt(sum(_square(block.numpy()) for block in torch.split(vector, WIDEST)))


def norms(blocks: Iterable[Block]) -> Tensor:
    """|v_i| of every vector: (num_vectors,) float64."""
    return _total(blocks, lambda block: [_square(row.numpy()) for row in block[1]]).sqrt()


def own_norm_and_distances(blocks: Iterable[Block]) -> Tensor:
    """|v_0|, then |v_i - v_0| of every other vector: (num_vectors,) float64."""

    def work(block: Block) -> list[float]:
        own, *others = (row.numpy() for row in block[1])
        buffer = np.empty_like(own)
        return [_square(own), *(_squared_distance(other, own, buffer) for other in others)]

    return _total(blocks, work).sqrt()


def distances_to(centre: Tensor, blocks: Iterable[Block]) -> Tensor:
    """|v_i - centre| of every vector: centre (dim,) -> (num_vectors,) float64."""

    def work(block: Block) -> list[float]:
        place, rows = block
        here = centre[place].numpy()
        buffer = np.empty_like(here)
        return [_squared_distance(row.numpy(), here, buffer) for row in rows]

    return _total(blocks, work).sqrt()


def gram(blocks: Iterable[Block]) -> Tensor:
    """Inner products of all vectors: (num_vectors, num_vectors) float64.

    The products are float64 too: a small distance between two long vectors is the difference of
    products that are nearly equal.
    """

    def work(block: Block) -> Tensor:
        matrix = torch.stack(block[1]).double()
        return matrix @ matrix.T

    return torch.stack(list(_each(blocks, work))).sum(dim=0)


def weighted_sum(blocks: Iterable[Block], weights: Sequence[float], dim: int) -> Tensor:
    """The sum of weight times vector: (dim,) float32."""
    total = torch.empty(dim) if weights else torch.zeros(dim)

    def work(block: Block) -> None:
        place, rows = block
        part = torch.mul(rows[0], weights[0], out=total[place])
        for weight, row in zip(weights[1:], rows[1:], strict=True):
            part.add_(row, alpha=weight)

    for _ in _each(blocks, work):
        pass
    return total


def is_finite(vector: Tensor) -> bool:
    """Whether no value is infinite or NaN: a sum would carry either on."""
    return math.isfinite(float(vector.sum()))


def _total(blocks: Iterable[Block], work: Callable[[Block], list[float]]) -> Tensor:
    """The sum over blocks of what `work` makes of each: float64."""
    return torch.tensor(list(_each(blocks, work)), dtype=torch.float64).sum(dim=0)


def _each(blocks: Iterable[Block], work: Callable[[Block], R]) -> Iterable[R]:
    """`work` of every block, in order.

    A list of blocks is shared out among threads: numpy and torch work outside Python's lock. An
    iterator may overwrite a block to make the next one, so it is followed step by step.
    """
    if isinstance(blocks, list) and len(blocks) > 1:
        return _threads().map(work, blocks)
    return map(work, blocks)


@lru_cache(maxsize=1)
def _threads() -> ThreadPoolExecutor:
    available = len(os.sched_getaffinity(0))
    return ThreadPoolExecutor(min(MOST_THREADS, available), thread_name_prefix="vectors")


def _square(values: Values) -> float:
    """|v|^2 of a short vector."""
    # numpy's dot and subtract are a fifth faster than torch's on pieces of this length.
    with np.errstate(over="ignore", invalid="ignore"):
        square = float(np.dot(values, values))
        if math.isfinite(square):
            return square
        wide = values.astype(np.float64)  # a square overflowed, or a value is not finite
        return float(np.dot(wide, wide))


def _squared_distance(left: Values, right: Values, buffer: Values) -> float:
    """|u - v|^2 of two short vectors; `buffer` is as long as they are."""
    with np.errstate(over="ignore", invalid="ignore"):
        np.subtract(left, right, out=buffer)
        square = float(np.dot(buffer, buffer))
        if math.isfinite(square):
            return square
        wide = left.astype(np.float64) - right
        return float(np.dot(wide, wide))
