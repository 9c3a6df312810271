"""Rows of one patient, which stay on one side of every split.

Rows are tied by the site file's patient key and by equality, as for a record that was exported
twice. Different patients can be equal by chance in a table of few and coarse columns. So equal
rows are tied only where fewer than MOST_BY_CHANCE others are expected: if finely measured columns
were independent, and judging by rows that differ in one of them alone, as patients of one ward do.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from erosion_client.dataset.text_table import hash_of_text, mixed

MOST_BY_CHANCE = 0.05  # other rows expected to equal a row
COARSE = 12  # values of a column that is not evidence
MOST_EVIDENCE = 12  # columns, those with the most values

_Rows = NDArray[np.bool_]  # (n,) row numbers
_Hashes = NDArray[np.uint64]  # (n,)


@dataclass(frozen=True, slots=True)
class SamePatient:
    """Which rows belong together."""

    groups: NDArray[np.int64]  # (n,) index of the patient, from 0, in the order of the rows
    exact: NDArray[np.int64]  # rows that equal an earlier one


def same_patient(
    rows: NDArray[np.float64] | NDArray[np.uint8],
    targets: NDArray[np.generic],
    keys: NDArray[np.int64] | None = None,
) -> SamePatient:
    """Tie together rows (n, features) or images (n, c, [d,] h, w) with their targets (n, ...)."""
    if rows.dtype == np.uint8:
        flat = np.ascontiguousarray(rows.astype(np.uint8, copy=False)).reshape(len(rows), -1)
        records = _first_of(flat.view(np.dtype((np.void, flat.shape[1])))[:, 0])
    else:
        told = targets.reshape(len(rows), -1)
        records = _records([*rows.T, *told.T.astype(np.float64)])
    links = [records] if keys is None else [records, _first_of(keys)]
    later = np.flatnonzero(records != np.arange(len(rows)))
    return SamePatient(groups=_components(links), exact=later)


def _records(columns: Sequence[NDArray[np.float64]]) -> NDArray[np.int64]:
    """Return the first row equal to each one (n,), or itself where that may be by chance.

    `columns`: (n,) each, NaN where a value is missing. A row's hash is the sum of its values'.
    """
    numbers = np.arange(len(columns[0]))
    hashes: _Hashes = np.zeros(len(numbers), dtype=np.uint64)
    for place, values in enumerate(columns):
        hashes += _cells(place, values)  # wraps around, as hashes may
    times = _times(hashes)
    found: _Rows = times > 1
    if not found.any():
        return numbers
    once = np.unique(hashes, return_index=True)[1]
    sizes = {place: len(np.unique(values)) for place, values in enumerate(columns)}
    evidence = sorted((p for p in sizes if sizes[p] > COARSE), key=lambda p: -sizes[p])
    expected = np.full(len(hashes), float(len(once)))
    for place in evidence[:MOST_EVIDENCE]:
        chance = _chance(np.unique(columns[place], return_inverse=True)[1], once)
        # Columns of one panel are missing together.
        chance[np.isnan(columns[place])] = 1.0
        expected *= chance
        others = _times(hashes - _cells(place, columns[place])) - times  # that differ in it alone
        # One of them may be the same record with a correction.
        found = found & (np.maximum(others - 1, 0) * chance < MOST_BY_CHANCE)
    return np.where(found & (expected < MOST_BY_CHANCE), _first_of(hashes), numbers)


def _cells(place: int, values: NDArray[np.float64]) -> _Hashes:
    values = values + 0.0  # of -0.0, too
    values[np.isnan(values)] = np.nan  # of one kind
    return mixed(values.view(np.uint64) ^ np.uint64(hash_of_text(str(place))))


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
