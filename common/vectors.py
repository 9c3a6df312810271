"""Norms, distances and sums of long float32 vectors: as fast as float32, as true as float64.

Vectors are gone through together, block by block. A block of all of them fits into the cache, so
each value is fetched once for all that is asked of it; its float32 sums are short, and the blocks'
sums are added up in float64. At 11 million values the relative error of a distance is below 1e-6.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

Block = tuple[slice, tuple[Tensor, ...]]  # a part of the vectors, and every vector's values there

BLOCK_VALUES = 1 << 19  # of all vectors together; 2 MiB
WIDEST = 1 << 17  # values of one vector in a block; 512 KiB


def block_places(dim: int, num_vectors: int) -> Iterator[slice]:
    """The parts into which `num_vectors` vectors of `dim` values are cut."""
    width = min(WIDEST, max(1, BLOCK_VALUES // max(1, num_vectors)))
    for start in range(0, dim, width):
        yield slice(start, min(dim, start + width))


def blocks_of(vectors: Sequence[Tensor]) -> Iterator[Block]:
    """Vectors (dim,) in memory as blocks of views."""
    for place in block_places(len(vectors[0]), len(vectors)):
        yield place, tuple(vector[place] for vector in vectors)


def norm(vector: Tensor) -> float:
    """|v| of (dim,) float32; infinite or NaN where a value is."""
    return math.sqrt(sum(_square(block) for block in torch.split(vector, WIDEST)))


def norms_and_distances(blocks: Iterable[Block], num_vectors: int) -> tuple[Tensor, Tensor]:
    """|v_i| and |v_i - v_0| of every vector: two (num_vectors,) float64."""
    squares, apart = [0.0] * num_vectors, [0.0] * num_vectors
    buffer = torch.empty(WIDEST)
    for _, rows in blocks:
        for i, row in enumerate(rows):
            squares[i] += _square(row)
            if i:
                apart[i] += _square(torch.sub(row, rows[0], out=buffer[: len(row)]))
    both = torch.tensor([squares, apart], dtype=torch.float64).sqrt()
    return both[0], both[1]


def distances_to(centre: Tensor, blocks: Iterable[Block], num_vectors: int) -> Tensor:
    """|v_i - centre| of every vector: centre (dim,) -> (num_vectors,) float64."""
    apart = [0.0] * num_vectors
    buffer = torch.empty(WIDEST)
    for place, rows in blocks:
        for i, row in enumerate(rows):
            apart[i] += _square(torch.sub(row, centre[place], out=buffer[: len(row)]))
    return torch.tensor(apart, dtype=torch.float64).sqrt()


def gram(blocks: Iterable[Block], num_vectors: int) -> Tensor:
    """Inner products of all vectors: (num_vectors, num_vectors) float64.

    The products are float64 too: a small distance between two long vectors is the difference of
    products that are nearly equal.
    """
    total = torch.zeros(num_vectors, num_vectors, dtype=torch.float64)
    for _, rows in blocks:
        matrix = torch.stack(rows).double()
        total += matrix @ matrix.T
    return total


def weighted_sum(blocks: Iterable[Block], weights: Sequence[float], dim: int) -> Tensor:
    """The sum of weight times vector: (dim,) float32."""
    total = torch.zeros(dim)
    for place, rows in blocks:
        part = total[place]
        for weight, row in zip(weights, rows, strict=True):
            part.add_(row, alpha=weight)
    return total


def is_finite(vector: Tensor) -> bool:
    """Whether no value is infinite or NaN: a sum would carry either on."""
    return math.isfinite(float(vector.sum()))


def _square(values: Tensor) -> float:
    """|v|^2 of a short float32 vector."""
    square = float(torch.dot(values, values))
    if math.isfinite(square):
        return square
    wide = values.double()  # a square overflowed, or a value is not finite
    return float(torch.dot(wide, wide))
