"""Rows of one patient, which stay on one side of every split.

Rows are tied by the site file's patient key and by equality, as for a record that was exported
twice. Different patients can be equal by chance in a table of few and coarse columns. So equal
rows are tied only where fewer than MOST_BY_CHANCE others are expected: if finely measured columns
were independent, and judging by rows that differ in one of them alone, as patients of one ward do.

Rows that differ in one column, and images that differ little, are only reported, and only where
they have different keys.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree

from erosion_client.dataset.text_table import hash_of_text, mixed

MOST_BY_CHANCE = 0.05  # other rows expected to equal a row
COARSE = 12  # values of a column that is not evidence
MOST_EVIDENCE = 12  # columns, those with the most values
MOST_CELLS = 20_000_000  # rows of a table that is searched for rows differing in one column
MOST_NEAR = 0.1  # of the rows: with more, some are near by chance, and columns say the same
GRID = 4  # side of the coarse grid on which images are compared first
NEAR_ON_GRID = 12.0  # grey levels, Euclidean
NEIGHBOURS = 6  # of each image that are compared, itself included
MOST_DIFFERENCE = 0.06  # mean absolute difference of pixels over their standard deviation

_Rows = NDArray[np.bool_]  # (n,) row numbers
_Hashes = NDArray[np.uint64]  # (n,)


@dataclass(frozen=True, slots=True)
class SamePatient:
    """Which rows belong together."""

    groups: NDArray[np.int64]  # (n,) index of the patient, from 0, in the order of the rows
    exact: NDArray[np.int64]  # rows that equal an earlier one
    near: NDArray[np.int64]  # rows that nearly equal another patient's; tied only if equal, too


def same_patient(
    rows: NDArray[np.float64] | NDArray[np.uint8],
    targets: NDArray[np.generic],
    keys: NDArray[np.int64] | None = None,
) -> SamePatient:
    """Tie together rows (n, features) or images (n, c, [d,] h, w) with their targets (n, ...)."""
    told = targets.reshape(len(rows), -1)
    patients = np.arange(len(rows)) if keys is None else keys
    if rows.dtype == np.uint8:
        images = np.ascontiguousarray(rows.astype(np.uint8, copy=False))
        flat = images.reshape(len(rows), -1)
        records = _first_of(flat.view(np.dtype((np.void, flat.shape[1])))[:, 0])
        near = _alike_images(images, flat, patients)
    else:
        records, near = _records([*rows.T, *told.T.astype(np.float64)], patients)
    # One picture under two targets is not a repetition: dropping either would choose its target.
    repeated = (told == told[records]).all(axis=1)
    is_later = records != np.arange(len(rows))
    links = [records] if keys is None else [records, _first_of(keys)]
    return SamePatient(
        groups=_components(links),
        exact=np.flatnonzero(is_later & repeated),
        near=np.flatnonzero((near & ~is_later) | (is_later & ~repeated)),
    )


def _records(
    columns: Sequence[NDArray[np.float64]], patients: NDArray[np.int64]
) -> tuple[NDArray[np.int64], _Rows]:
    """Return the first row equal to each one (n,), and those that differ from another patient's
    in one column alone.
    """
    table, num_rows = _Table(columns), len(columns[0])
    records = np.where(table.repeated(), _first_of(table.hashes), np.arange(num_rows))
    near = np.zeros(num_rows, dtype=bool)
    for column in table.may_differ_in() if len(columns) * num_rows <= MOST_CELLS else ():
        near |= table.repeated(but_in=column) & table.shared(column, patients)
    return records, near if near.mean() <= MOST_NEAR else np.zeros_like(near)


class _Table:
    """A table with a hash per row, the sum of the hashes of its values."""

    def __init__(self, columns: Sequence[NDArray[np.float64]]) -> None:
        """`columns`: (n,) each, NaN where a value is missing."""
        self._columns = columns
        self._known: dict[int, NDArray[np.int64]] = {}  # codes
        self._halves: _Hashes = np.zeros((2, len(columns[0])), dtype=np.uint64)
        for column in range(len(columns)):
            self._halves[column % 2] += self._cells(column)  # wraps around, as hashes may
        self.hashes: _Hashes = self._halves[0] + self._halves[1]
        self._times = _times(self.hashes)

    def may_differ_in(self) -> Iterator[int]:
        """Yield the columns but for which some row may equal another one.

        Such rows are equal in every other column of both halves, and so in all of one half.
        """
        others = [np.flatnonzero(_times(half) > 1) for half in self._halves]
        for column in range(len(self._columns)):
            rows = others[1 - column % 2]
            hashes = self.hashes[rows] - self._cells(column, rows)
            if (_times(hashes) > self._times[rows]).any():
                yield column

    @cached_property
    def _evidence(self) -> list[int]:
        """The columns that are evidence, those with the most values first."""
        sizes = {column: len(np.unique(values)) for column, values in enumerate(self._columns)}
        return sorted((c for c in sizes if sizes[c] > COARSE), key=lambda c: -sizes[c])

    def _codes(self, column: int) -> NDArray[np.int64]:
        """Return a column's values by number: (n,), from 0."""
        if column not in self._known:
            self._known[column] = np.unique(self._columns[column], return_inverse=True)[1]
        return self._known[column]

    def repeated(self, *, but_in: int | None = None) -> _Rows:
        """Return rows that equal another one, or in all columns but one, where that is unlikely."""
        hashes = self.hashes if but_in is None else self.hashes - self._cells(but_in)
        times = _times(hashes)
        found: _Rows = times > (1 if but_in is None else self._times)
        if not found.any():
            return found
        once = np.unique(hashes, return_index=True)[1]
        expected = np.full(len(hashes), float(len(once)))
        for column in [c for c in self._evidence if c != but_in][:MOST_EVIDENCE]:
            chance = _chance(self._codes(column), once)
            # Columns of one panel are missing together.
            chance[np.isnan(self._columns[column])] = 1.0
            expected *= chance
            others = _times(hashes - self._cells(column)) - times  # that differ in it alone
            # One of them may be the same record with a correction.
            found = found & (np.maximum(others - 1, 0) * chance < MOST_BY_CHANCE)
        return found & (expected < MOST_BY_CHANCE)

    def shared(self, column: int, patients: NDArray[np.int64]) -> _Rows:
        """Return rows that another patient's equal in all columns but one."""
        hashes = self.hashes - self._cells(column)
        found: _Rows = np.isin(hashes, hashes[patients != patients[_first_of(hashes)]])
        return found

    def _cells(self, column: int, rows: slice | NDArray[np.int64] = slice(None)) -> _Hashes:
        values = self._columns[column][rows] + 0.0  # of -0.0, too
        values[np.isnan(values)] = np.nan  # of one kind
        return mixed(values.view(np.uint64) ^ np.uint64(hash_of_text(str(column))))


def _times(hashes: _Hashes) -> NDArray[np.int64]:
    """Return how many rows have each row's hash: (n,)."""
    ordered = np.sort(hashes)
    if (ordered[1:] != ordered[:-1]).all():
        return np.ones(len(hashes), dtype=np.int64)
    _, inverse, counts = np.unique(hashes, return_inverse=True, return_counts=True)
    return counts[inverse]


def _chance(codes: NDArray[np.int64], once: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the chance that another patient has each value (n,), from the distinct rows `once`.

    For a value that only one of them has, it is the Good-Turing estimate from the number of values
    that two of them have.
    """
    counts = np.bincount(codes[once], minlength=int(codes.max()) + 1)
    singles, pairs = int((counts == 1).sum()), int((counts == 2).sum())
    alone = min((2 * pairs + 1) / (max(singles, 1) * len(once)), 1.0)
    chances: NDArray[np.float64] = np.where(counts <= 1, alone, (counts - 1) / len(once))
    return chances[codes]


def _alike_images(
    images: NDArray[np.uint8], flat: NDArray[np.uint8], patients: NDArray[np.int64]
) -> _Rows:
    """Return images with nearly the pixels of another patient's, its neighbour on a coarse grid."""
    coarse = np.stack([_coarse(image) for image in images])
    neighbours = min(NEIGHBOURS, len(images))
    _, nearest = cKDTree(coarse).query(
        coarse, k=range(1, neighbours + 1), distance_upper_bound=NEAR_ON_GRID
    )
    found = np.zeros(len(images), dtype=bool)
    for one, others in enumerate(nearest.tolist()):
        for other in others:  # n: none is near enough
            if other == len(images) or patients[other] == patients[one]:
                continue
            if _nearly_equal(flat[one], flat[other]):
                found[[one, other]] = True
    return found


def _coarse(image: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return the mean grey of each field of a coarse grid over an image (c, h, w)."""
    grey = image.mean(axis=0).reshape(-1, image.shape[-1])
    height, width = grey.shape
    rows = np.linspace(0, height, min(GRID, height), endpoint=False).astype(int)
    columns = np.linspace(0, width, min(GRID, width), endpoint=False).astype(int)
    sums = np.add.reduceat(np.add.reduceat(grey, rows, axis=0), columns, axis=1)
    areas = np.outer(np.diff([*rows, height]), np.diff([*columns, width]))
    means: NDArray[np.float64] = (sums / areas).reshape(-1)
    return means


def _nearly_equal(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> bool:
    """Return whether the pixels differ, but little compared with the image's variation."""
    difference = np.abs(one.astype(np.float32) - other).mean()
    return bool(0 < difference < MOST_DIFFERENCE * one.std())


def _first_of(keys: NDArray[np.generic]) -> NDArray[np.int64]:
    """Return the first row with each row's key: (n,)."""
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    earliest: NDArray[np.int64] = first[inverse]
    return earliest


def _components(links: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return the group of each row (n,): the connected components of `links`."""
    ones, others = np.concatenate([np.arange(len(link)) for link in links]), np.concatenate(links)
    tied = coo_array((np.ones(len(ones), dtype=bool), (ones, others)), shape=(len(links[0]),) * 2)
    found: NDArray[np.int64] = connected_components(tied, directed=False)[1].astype(np.int64)
    return found
