"""Rows that are, or may be, one patient: they stay on one side of every split.

Three things tie rows together:

* the site file's patient key: several stays, images or lesions of one patient;
* equality: the same record exported twice;
* near equality: numbers that differ by TOLERANCE at most in every column, or in every column but
  one, as where a record was corrected, rounded, or exported again in other units. Images are nearly
  equal if their pixels differ by little, as after compressing again.

Different patients can be equal by chance, above all in a table of few and coarse columns. So
equality only counts where fewer than MOST_BY_CHANCE other rows are expected to agree with a row,
or MOST_NEAR_BY_CHANCE to agree nearly, judged as if columns were independent by those that count
as evidence: the finely measured ones (more than COARSE values; coarse ones are too often linked
with each other) that no other tells. What is said of a patient's ward or postcode is told by the
column that says most of it, and the body mass index by weight and height: patients of one ward
agree in all of its columns, and are several. So do those without a panel of measurements: of what
is missing, one value counts. A table without such columns cannot tell repeated patients from
similar ones: there, only a patient key helps.

Of a table of very many columns, the strongest MOST_EVIDENCE count: agreement in more of them says
nothing more. So everything is O(columns x log n x n).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree

TOLERANCE = 0.005  # of two numbers, relative to them
FAR = 1e4  # beyond any distance of two logarithms
MOST_CANDIDATES = 20  # other rows expected to agree with a row in half of the columns by chance
MOST_AGREEING = 100  # other rows that do agree with a row in half of the columns, on average
COARSE = 12  # values of a column
MOST_BY_CHANCE = 0.25  # other rows expected to agree with a row in every column
MOST_NEAR_BY_CHANCE = 0.01  # expected to agree nearly
REPEATS = 5  # rows for each value of a column, on average, that may tell others
MOST_EVIDENCE = 100  # columns, and as many of which others may be computed
MOST_JUDGED = 300  # columns that are held against those, the strongest
LOOKED_AT = 2000  # rows, of which a mean or a fit is taken for that of all
MOST_TERMS = 8  # values and logarithms that it is computed from
UNEXPLAINED = 0.05  # of a column's spread: less is left of one that is computed from others
GRID = 4  # side of the coarse grid on which images are compared first
NEAR_ON_GRID = 12.0  # grey levels, Euclidean
NEIGHBOURS = 6  # of each image that are looked at, itself included
MOST_DIFFERENCE = 0.06  # mean absolute difference of pixels over their standard deviation

Logs = NDArray[np.float64]
Pair = tuple[NDArray[np.int64], NDArray[np.int64]]  # rows, and a row that each is tied to


@dataclass(frozen=True, slots=True)
class SamePatient:
    """Which rows belong together."""

    groups: NDArray[np.int64]  # (n,) index of the patient, from 0, in the order of the rows
    exact: NDArray[np.int64]  # rows that equal an earlier one
    near: NDArray[np.int64]  # rows that nearly equal another, and are not in `exact`

    @property
    def num_patients(self) -> int:
        """Patients, as far as one can tell."""
        return int(self.groups.max()) + 1 if len(self.groups) else 0


def same_patient(
    rows: NDArray[np.float64] | NDArray[np.uint8],
    targets: NDArray[np.generic],
    keys: NDArray[np.int64] | None = None,
) -> SamePatient:
    """Tie together rows (n, features) or images (n, c, h, w) with their targets (n,) or (n, t).

    `keys`: (n,) the same number for rows of one patient, where the site file names a patient key.
    """
    if rows.dtype == np.uint8:
        equal, alike = _image_ties(rows.astype(np.uint8, copy=False))
    else:
        equal, alike = _table_ties(np.column_stack([rows, targets.astype(np.float64)]))
    by_key = _ties((np.arange(len(rows)), np.arange(len(rows)) if keys is None else keys))
    # One picture under two targets is no repetition: to drop either would be to choose its target.
    told = targets.reshape(len(rows), -1)
    repeated = (told[equal[0]] == told[equal[1]]).all(axis=1)
    exact = np.unique(equal[0][repeated])
    nearly = np.setdiff1d(np.concatenate(alike), np.concatenate(equal))
    return SamePatient(
        groups=_components(len(rows), [equal, alike, by_key]),
        exact=exact,
        near=np.union1d(nearly, equal[0][~repeated]),
    )


Keyed = tuple[NDArray[np.int64], NDArray[np.generic]]  # some rows, and a key for each


def _table_ties(columns: NDArray[np.float64]) -> tuple[Pair, Pair]:
    """Equal rows (n, columns), and nearly equal ones, where that is a surprise."""
    codes = [np.unique(values, return_inverse=True, equal_nan=True)[1] for values in columns.T]
    hashes = _row_hashes(codes)
    # Chances are of distinct rows: repeated ones must not make their own values look common.
    once = np.unique(hashes, return_index=True)[1]
    evidence = _evidence(columns[once], [of_column[once] for of_column in codes])
    chances = np.zeros(columns.shape)
    for column in evidence:
        chances[:, column] = _log_chance(codes[column], once)
    expected = np.log(max(len(columns) - 1, 1)) + _one_of_missing(chances, columns).sum(axis=1)
    kept = np.flatnonzero(expected < np.log(MOST_BY_CHANCE))
    return _ties((kept, hashes[kept])), _near_rows(columns, once, evidence)


def _evidence(distinct: NDArray[np.float64], codes: list[NDArray[np.int64]]) -> list[int]:
    """The columns of distinct rows (n, columns) in which agreement is evidence.

    The strongest come first, so that a postcode counts and not what is said of it, and a number
    and not the same one rounded. `codes`: of each column's values (n,), from 0. The rows are in no
    order that has to do with their values.
    """
    every = np.arange(len(distinct))
    sizes = [int(of_column.max(initial=-1)) + 1 for of_column in codes]
    fine = [column for column, size in enumerate(sizes) if size > COARSE]
    strength = {column: -_log_chance(codes[column], every).mean() for column in fine}
    coarse = [column for column in range(len(sizes)) if column not in strength]
    finest = sorted(coarse, key=lambda column: -sizes[column])
    terms = _terms(distinct[:LOOKED_AT])
    counted: list[int] = []
    repeated: list[tuple[int, _Repeated]] = []  # of those counted: how many values, and their rows
    for column in sorted(fine, key=lambda column: -strength[column])[:MOST_JUDGED]:
        told_by = [*sorted(finest[: MOST_EVIDENCE - len(counted)]), *counted]
        if any(sizes[column] <= 2 * size and _follows(codes[column], of) for size, of in repeated):
            continue
        if any(_is_computed(terms[term, :, column], terms[:, :, told_by]) for term in (0, 1)):
            continue
        counted.append(column)
        if len(counted) == MOST_EVIDENCE:
            break
        if len(distinct) >= REPEATS * sizes[column]:
            repeated.append((sizes[column], _repeated(codes[column])))
    return counted


# Pairs of rows that agree in a column: one row, the other, and the pair's weight, by which every
# value has the same. A column that is mostly empty or 0 is not judged by the rows where it is.
_Repeated = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]


def _repeated(codes: NDArray[np.int64]) -> _Repeated:
    ordered = np.argsort(codes, kind="stable")
    of = codes[ordered]
    pairs = np.flatnonzero(of[1:] == of[:-1])
    weights = 1 / np.bincount(of[pairs])[of[pairs]]
    return ordered[pairs], ordered[pairs + 1], weights / weights.sum()


def _follows(codes: NDArray[np.int64], repeated: _Repeated) -> bool:
    """Whether rows that agree in another column mostly agree in this one, beyond what any do."""
    ones, others, weights = repeated
    agree = weights @ (codes[ones] == codes[others])
    by_chance = ((np.bincount(codes) / len(codes)) ** 2).sum()
    return bool(agree - by_chance > (1 - by_chance) / 2)


def _terms(columns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Values and logarithms of columns (n, columns) as (2, n, columns), NaN where there is none."""
    size = np.abs(columns)
    known = np.isfinite(size)
    largest = np.where(known, size, 0.0).max(axis=0, initial=0.0)
    values = np.where(known, columns, np.nan) / np.where(largest > 0, largest, 1.0)
    logs = np.log(size, out=np.full_like(columns, np.nan), where=known & (size > 0))
    return np.stack([values, logs])


def _is_computed(target: NDArray[np.float64], terms: NDArray[np.float64]) -> bool:
    """Whether a few of the terms (2, n, columns), added up, give nearly all of the target (n,).

    Least squares by forward selection. Medians decide, for the same rows' marks of what is missing
    (999 in several columns) would explain nearly all of the variance.
    """
    rows = np.flatnonzero(np.isfinite(target))
    left = target[rows]
    spread = np.median(np.abs(left - np.median(left))) if len(rows) else 0.0
    if not spread:
        return False
    left = left - left.mean()
    free = np.concatenate(list(terms[:, rows]), axis=1)
    known = np.isfinite(free)
    means = np.where(known, free, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    free = np.where(known, free - means, 0.0)
    least = 1e-6 * np.linalg.norm(free, axis=0) + 1e-12  # of one that is no more than the others
    for _ in range(min(MOST_TERMS, len(rows) // 10)):
        norms = np.linalg.norm(free, axis=0)
        gains = np.where(norms > least, np.abs(left @ free) / np.maximum(norms, least), 0.0)
        if not gains.any():
            return False
        best = int(gains.argmax())
        direction = free[:, best] / norms[best]
        left = left - direction * (direction @ left)
        if np.median(np.abs(left)) < UNEXPLAINED * spread:
            return True
        free = free - np.outer(direction, direction @ free)
    return False


def _one_of_missing(log_chance: Logs, columns: NDArray[np.float64]) -> Logs:
    """The same, where of the values that a row misses only the one that says most counts.

    Those of one panel are missed together. 0 is often written for what was not measured.
    """
    missing = np.isnan(columns) | (columns == 0)
    of_missing = np.where(missing, log_chance, 0.0)
    most = np.zeros(columns.shape, dtype=bool)
    np.put_along_axis(most, of_missing.argmin(axis=1)[:, None], True, axis=1)
    return np.where(missing & ~most, 0.0, log_chance)


def _near_rows(columns: NDArray[np.float64], once: NDArray[np.int64], evidence: list[int]) -> Pair:
    """Of distinct rows, those that agree nearly in every column, or in every column but one.

    Such rows agree in all columns of one half of the evidence at least, so pairs are looked for by
    each half, and then looked at in full. A half in which too many agree finds none.
    """
    distinct = columns[once]
    if len(distinct) < 2:
        return once[:0], once[:0]
    places, chances = zip(*(_placed(values) for values in distinct.T), strict=True)
    table, log_chance = np.column_stack(places), np.column_stack(chances)
    log_chance[:, np.setdiff1d(np.arange(columns.shape[1]), evidence)] = 0.0
    log_chance = _one_of_missing(log_chance, distinct)
    by_evidence = [c for c in np.argsort(log_chance.mean(axis=0)).tolist() if c in evidence]
    pairs = [np.zeros((0, 2), dtype=np.int64)]
    for half in (by_evidence[::2], by_evidence[1::2]):
        if half:
            likely = np.log(len(distinct) - 1) + log_chance[:, half].sum(axis=1)
            kept = np.flatnonzero(likely < np.log(MOST_CANDIDATES))
            tree = cKDTree(table[np.ix_(kept, half)])
            agreeing = tree.query_ball_point(
                tree.data[:LOOKED_AT], TOLERANCE, p=np.inf, return_length=True
            )
            if agreeing.sum() <= (MOST_AGREEING + 1) * len(agreeing):  # each with itself, too
                found = tree.query_pairs(TOLERANCE, p=np.inf, output_type="ndarray")
                pairs.append(kept[found])
    one, other = np.unique(np.concatenate(pairs), axis=0).T
    apart = np.abs(table[one] - table[other]) > TOLERANCE
    # Without the column in which they differ: its agreement is no evidence.
    counted = np.where(apart, 0.0, np.maximum(log_chance[one], log_chance[other])).sum(axis=1)
    surprising = np.log(len(distinct) - 1) + counted < np.log(MOST_NEAR_BY_CHANCE)
    alike = np.flatnonzero((apart.sum(axis=1) <= 1) & surprising)
    return once[other[alike]], once[one[alike]]


def _placed(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], Logs]:
    """A column (n,) where values that nearly agree are TOLERANCE apart at most, and log chances.

    The chance is that of another row to have nearly the same value as a row. A coarse column is
    compared exactly, and is no evidence: its chance counts as 1.
    """
    distinct, codes = np.unique(values, return_inverse=True, equal_nan=True)
    if len(distinct) <= COARSE:
        return codes.astype(np.float64), np.zeros(len(values))
    size = np.abs(values)
    known = np.isfinite(size) & (size > 0)
    logs = np.log(size, out=np.zeros_like(values), where=known)
    # Zero, missing and negative values are far from all others.
    place = np.where(known, logs + FAR * (values < 0), np.where(np.isnan(values), 2 * FAR, 3 * FAR))
    ordered = np.sort(place)
    near = np.searchsorted(ordered, place + TOLERANCE, side="right") - np.searchsorted(
        ordered, place - TOLERANCE, side="left"
    )
    return place, np.log(np.maximum(near - 1, 1) / len(values))


def _row_hashes(codes: list[NDArray[np.int64]]) -> NDArray[np.uint64]:
    """Hashes (n,) that are equal for equal rows: each the sum of its columns' hashes."""
    total = np.zeros(len(codes[0]), dtype=np.uint64)
    for index, of_column in enumerate(codes):
        num_values = int(of_column.max(initial=-1)) + 1
        drawn = np.random.default_rng(index).integers(0, 2**64, num_values, dtype=np.uint64)
        total = total + drawn[of_column]  # wraps round, as hashes may
    return total


def _log_chance(codes: NDArray[np.int64], once: NDArray[np.int64]) -> Logs:
    """Logarithm of the chance that another patient has the value of each row (n,).

    That of a value which only one of the distinct rows has is estimated by Good and Turing from
    how many values two of them have.
    """
    counts = np.bincount(codes[once], minlength=int(codes.max()) + 1)
    singles, pairs = int((counts == 1).sum()), int((counts == 2).sum())
    alone = (2 * pairs + 1) / (max(singles, 1) * len(once))
    chances = np.where(counts <= 1, min(alone, 1.0), (counts - 1) / len(once))
    logs: Logs = np.log(chances)[codes]
    return logs


def _image_ties(images: NDArray[np.uint8]) -> tuple[Pair, Pair]:
    """Equal images (n, c, [d,] h, w), and nearly equal ones."""
    flat = np.ascontiguousarray(images.reshape(len(images), -1))
    as_bytes = flat.view(np.dtype((np.void, flat.shape[1])))[:, 0]
    return _ties((np.arange(len(images)), as_bytes)), _alike(images, flat)


def _alike(images: NDArray[np.uint8], flat: NDArray[np.uint8]) -> Pair:
    """Of each image's nearest neighbours on a coarse grid, those whose pixels agree as well."""
    coarse = np.stack([_coarse(image) for image in images])
    neighbours = min(NEIGHBOURS, len(images))
    _, nearest = cKDTree(coarse).query(
        coarse, k=range(1, neighbours + 1), distance_upper_bound=NEAR_ON_GRID
    )
    ones = np.repeat(np.arange(len(images)), neighbours)
    others = nearest.reshape(-1)
    candidates = np.flatnonzero((others < len(images)) & (others != ones))  # n: none so near
    agree = [i for i in candidates.tolist() if _nearly_equal(flat[ones[i]], flat[others[i]])]
    return ones[agree], others[agree]


def _coarse(image: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Mean grey of each field of a coarse grid laid over an image (c, h, w).

    The slices of a volume (c, d, h, w) lie below one another.
    """
    grey = image.mean(axis=0).reshape(-1, image.shape[-1])
    height, width = grey.shape
    rows = np.linspace(0, height, min(GRID, height), endpoint=False).astype(int)
    columns = np.linspace(0, width, min(GRID, width), endpoint=False).astype(int)
    sums = np.add.reduceat(np.add.reduceat(grey, rows, axis=0), columns, axis=1)
    areas = np.outer(np.diff([*rows, height]), np.diff([*columns, width]))
    means: NDArray[np.float64] = (sums / areas).reshape(-1)
    return means


def _nearly_equal(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> bool:
    """Whether the pixels differ little beside how much the image varies in itself."""
    difference = np.abs(one.astype(np.float32) - other).mean()
    return bool(difference < MOST_DIFFERENCE * one.std())


def _ties(keyed: Keyed) -> Pair:
    """Every row whose key an earlier row has, and the first row that has it."""
    rows, keys = keyed
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    earliest = rows[first[inverse]]
    repeats = rows != earliest
    return rows[repeats], earliest[repeats]


def _components(num_rows: int, pairs: list[Pair]) -> NDArray[np.int64]:
    """The group of each row: tied rows, and what is tied to those, are one group."""
    ones = np.concatenate([one for one, _ in pairs])
    others = np.concatenate([other for _, other in pairs])
    links = coo_array((np.ones(len(ones), dtype=bool), (ones, others)), shape=(num_rows, num_rows))
    found: NDArray[np.int64] = connected_components(links, directed=False)[1].astype(np.int64)
    return found
