"""Recognises sets of patients: equal ones, nearly equal ones, and which may be trained on.

A set is kept as a short summary. Every patient is hashed to one of BUCKETS places, and each place
holds the sum of its patients' hashes. Sets that differ in d patients differ in at most 2d places (a
changed patient leaves one and enters another); so where at least 2d places differ, at least d
patients do. The converse may fail by chance: then a site takes two sets to be nearer than they are,
and discloses less.

Cohorts, from which updates are computed, are kept whole. Training on all patients in one batch
gives an update that is nearly a sum over them, and two such updates, before and after one patient
was added, removed or corrected, differ by that patient's record. So where a study's patients are
nearly those of an earlier one, the study gets the earlier one's patients; where some of these are
gone, others are left out with them, drawn by the site's secret, until a cell of patients differs. A
row is recognised by its values as the study sees them, or by all its source data; by each of these
a cohort must equal an earlier one or differ in a cell. Values that were trained on before may be
used again: that update was given.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from erosion_client.dataset.text_table import mixed

BUCKETS = 1024

Hashes = NDArray[np.uint64]
Sketch = NDArray[np.uint64]  # (BUCKETS,)


def keys_of(secret: bytes) -> Hashes:
    """Return four numbers that key the hashes."""
    return np.frombuffer(hashlib.sha256(b"erosion cells" + secret).digest(), dtype="<u8").copy()


def patient_hashes(
    values: NDArray[np.float64] | NDArray[np.uint8], groups: NDArray[np.int64], keys: Hashes
) -> Hashes:
    """Return a hash per patient of rows (n, ...), of all its rows' values; (patients,).

    Patients with equal values have different hashes, by their number among these: a set with one
    more of them differs in one.
    """
    return hashes_of_patients(row_hashes(values, keys), groups, keys)


def hashes_of_patients(rows: Hashes, groups: NDArray[np.int64], keys: Hashes) -> Hashes:
    """Return the same for rows (n,) that have hashes."""
    if not len(rows):
        return np.zeros(0, dtype=np.uint64)
    _, places = np.unique(groups, return_inverse=True)
    patients = np.zeros(int(places.max()) + 1, dtype=np.uint64)
    np.add.at(patients, places, mixed(rows ^ keys[2]))
    return mixed(patients ^ mixed(times_before(patients) ^ keys[3]))


def text_hashes(texts: Sequence[str]) -> Hashes:
    """Return one hash per text: (n,)."""
    found = [_of_bytes(text.encode(errors="surrogatepass")) for text in texts]
    return np.array(found, dtype=np.uint64)


def row_hashes(values: NDArray[np.float64] | NDArray[np.uint8], keys: Hashes) -> Hashes:
    """Return one hash per row of (n, ...), of its values: (n,)."""
    flat = np.ascontiguousarray(values.reshape(len(values), int(np.prod(values.shape[1:]))))
    if flat.dtype == np.uint8:
        return np.array([_of_bytes(row.tobytes()) for row in flat], dtype=np.uint64)
    numbers = np.where(np.isnan(flat), np.nan, flat.astype(np.float64) + 0.0)  # one NaN, one 0
    hashes = np.full(len(numbers), keys[0], dtype=np.uint64)
    for column in numbers.T:
        hashes = mixed(hashes ^ mixed(np.ascontiguousarray(column).view(np.uint64) ^ keys[1]))
    return hashes


def sketch_of(hashes: Hashes) -> Sketch:
    """Return the summary of a set of patients."""
    places = np.zeros(BUCKETS, dtype=np.uint64)
    np.add.at(places, (hashes % np.uint64(BUCKETS)).astype(np.int64), mixed(hashes))
    return places


def num_differing(one: Sketch, others: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return in how many places each of (k, BUCKETS) differs from `one`: (k,)."""
    found: NDArray[np.int64] = (others != one).sum(axis=1)
    return found


def num_shared(one: Sketch, others: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return how many of `one`'s occupied places are equal in each of (k, BUCKETS): (k,)."""
    found: NDArray[np.int64] = ((others == one) & (one != 0)).sum(axis=1)
    return found


def nearly_same(one: Sketch, others: NDArray[np.uint64], cell: int) -> NDArray[np.bool_]:
    """Return which of (k, BUCKETS) may differ from `one` in fewer than a cell of patients: (k,).

    A changed patient changes two places. Disjoint sets are not nearly the same, however small; a
    set is the same as itself.
    """
    apart = num_differing(one, others)
    nearly = (apart < 2 * cell) & (num_shared(one, others) > 0)
    found: NDArray[np.bool_] = nearly | (apart == 0)
    return found


def mostly_same(one: Sketch, others: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return which of (k, BUCKETS) share most of the occupied places of both: (k,)."""
    occupied = np.maximum((one != 0).sum(), (others != 0).sum(axis=1))
    found: NDArray[np.bool_] = 2 * num_shared(one, others) >= occupied
    return found


def times_before(hashes: Hashes) -> Hashes:
    """Return, for each of (n,), how many equal ones precede it."""
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])[: len(ordered)]
    lengths = np.diff(np.r_[starts, len(ordered)])
    counted = np.empty(len(hashes), dtype=np.uint64)
    counted[order] = np.arange(len(hashes)) - np.repeat(starts, lengths)
    return counted


def _of_bytes(row: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(row, digest_size=8).digest(), "little")


Mask = NDArray[np.bool_]  # (n,) rows that are trained on


@dataclass(frozen=True, slots=True, eq=False)
class PatientCohort:
    """The rows of one study's training part."""

    hashes: tuple[Hashes, ...]  # each (n,): by the study's values, and by the whole row
    patients: NDArray[np.int64]  # (n,) equal for rows of one patient

    def take(self, rows: Mask) -> "PatientCohort":
        """Return some of the rows."""
        return PatientCohort(tuple(found[rows] for found in self.hashes), self.patients[rows])

    def has_values_of(self, other: "PatientCohort") -> bool:
        """Return whether an update of it is one of the other, too."""
        return np.array_equal(np.sort(self.hashes[0]), np.sort(other.hashes[0]))

    def is_same_as(self, other: "PatientCohort") -> bool:
        """Return whether every kind of hash is equal, in any order of the rows."""
        return len(self.hashes) == len(other.hashes) and all(
            np.array_equal(np.sort(ours), np.sort(theirs))
            for ours, theirs in zip(self.hashes, other.hashes, strict=True)
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Compared:
    """A set compared with an earlier one, by one kind of hash."""

    shared: Mask  # (n,) rows that are also in the earlier one
    num_new: int  # patients who are not in the earlier one
    num_gone: int  # patients of the earlier one who are not in the set
    gone: np.uint64  # a name for these

    @property
    def num_differing(self) -> int:
        """A lower bound of the patients that differ; a corrected one is both new and gone."""
        return max(self.num_new, self.num_gone)


def set_of(
    values: Hashes, whole_rows: Hashes | None, patients: NDArray[np.int64], keys: Hashes
) -> PatientCohort:
    """Return a set by its rows' hashes (n,), keyed here because they are kept on the disk."""
    found = [values] if whole_rows is None else [values, whole_rows]
    return PatientCohort(tuple(_distinguished(hashes, keys) for hashes in found), patients)


def settle(
    asked: PatientCohort, earlier: Sequence[PatientCohort], cell: int, key: np.uint64
) -> Mask | None:
    """Return which of a study's rows are trained on; None where too few remain."""
    if _may_be_trained_on(asked, earlier, cell):
        return np.ones(len(asked.patients), dtype=bool)
    near = [found for found in _compared(asked, earlier) if 0 < found.num_differing < cell]
    within = [found.shared for found in near if found.num_gone == 0]
    for rows in sorted(within, key=lambda shared: -int(shared.sum())):
        if _may_be_trained_on(asked.take(rows), earlier, cell):
            return rows
    closest = min(near, key=lambda found: found.num_differing)
    left = np.unique(asked.patients[closest.shared])
    # By the patients that are gone: another patient's removal leaves others out.
    order = left[np.argsort(mixed(_names(asked, left) ^ mixed(np.array([closest.gone ^ key]))))]
    for number in range(cell - closest.num_gone, len(order) - cell + 1):
        rows = closest.shared & ~np.isin(asked.patients, order[:number])
        if _may_be_trained_on(asked.take(rows), earlier, cell):
            return rows
    return None


def _may_be_trained_on(asked: PatientCohort, earlier: Sequence[PatientCohort], cell: int) -> bool:
    """Return whether it was used before, or differs from each earlier set in nobody or a cell."""
    if any(asked.has_values_of(other) for other in earlier):
        return True
    differing = [found.num_differing for found in _compared(asked, earlier)]
    return all(number == 0 or number >= cell for number in differing)


def _compared(asked: PatientCohort, earlier: Sequence[PatientCohort]) -> list[_Compared]:
    """Compare with every earlier set, by every kind of hash that both have: some have one."""
    return [
        _compare(asked, ours, other, theirs)
        for other in earlier
        for ours, theirs in zip(asked.hashes, other.hashes, strict=False)
    ]


def _compare(asked: PatientCohort, ours: Hashes, other: PatientCohort, theirs: Hashes) -> _Compared:
    shared, kept = np.isin(ours, theirs), np.isin(theirs, ours)
    return _Compared(
        shared,
        len(np.unique(asked.patients[~shared])),
        len(np.unique(other.patients[~kept])),
        np.bitwise_xor.reduce(theirs[~kept], initial=np.uint64(0)),
    )


def _names(asked: PatientCohort, patients: NDArray[np.int64]) -> Hashes:
    """Return one hash per patient: the least of its rows'."""
    order = np.lexsort((asked.hashes[0], asked.patients))
    firsts = np.searchsorted(asked.patients[order], patients)
    return asked.hashes[0][order][firsts]


def _distinguished(hashes: Hashes, keys: Hashes) -> Hashes:
    """Return keyed hashes that distinguish equal rows."""
    keyed = mixed(hashes ^ keys[0])
    return mixed(keyed ^ mixed(times_before(keyed) ^ keys[1]))
