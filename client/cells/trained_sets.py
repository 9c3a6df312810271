"""Of whom updates are computed: of the same patients as before, or of sets that differ in a cell.

Training on all patients in one batch gives an update that is nearly a sum over them. Two such
updates, before and after one patient came, went or was corrected, or was left out for a missing
value of another study's columns, differ by that patient's record. So where a study's patients are
nearly those of an earlier one, the study gets the earlier one's patients; where some of these are
gone, others are left out with them, drawn by the site's secret, until a cell of patients differs.

A row is known again by its values as the study sees them, or by all that the table says of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from erosion.client.cells.sketch import Hashes, mixed, times_before

Mask = NDArray[np.bool_]  # (n,) rows that are trained on


@dataclass(frozen=True, slots=True, eq=False)
class TrainedSet:
    """The rows of one study's training part."""

    hashes: tuple[Hashes, ...]  # each (n,): by the study's values, and by the whole row
    patients: NDArray[np.int64]  # (n,) equal for rows of one patient

    def take(self, rows: Mask) -> "TrainedSet":
        """Some of the rows."""
        return TrainedSet(tuple(found[rows] for found in self.hashes), self.patients[rows])

    def is_same_as(self, other: "TrainedSet") -> bool:
        """Whether every kind of hash is the same, in whatever order the rows stand."""
        return len(self.hashes) == len(other.hashes) and all(
            np.array_equal(np.sort(ours), np.sort(theirs))
            for ours, theirs in zip(self.hashes, other.hashes, strict=True)
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Compared:
    """A set beside an earlier one, by one kind of hash."""

    shared: Mask  # (n,) rows that the earlier one has, too
    num_new: int  # patients who are not in the earlier one
    num_gone: int  # patients of the earlier one who are not in the set
    gone: np.uint64  # a name for these

    @property
    def num_differing(self) -> int:
        """Patients at least; one who was corrected is new and gone."""
        return max(self.num_new, self.num_gone)


def set_of(
    values: Hashes, whole_rows: Hashes | None, patients: NDArray[np.int64], keys: Hashes
) -> TrainedSet:
    """A set by its rows' hashes (n,), which are keyed here: they are kept on the disk."""
    found = [values] if whole_rows is None else [values, whole_rows]
    return TrainedSet(tuple(_told_apart(hashes, keys) for hashes in found), patients)


def settle(
    asked: TrainedSet, earlier: Sequence[TrainedSet], cell: int, key: np.uint64
) -> Mask | None:
    """Which of the rows that a study asks for are trained on; None where too few would be left."""
    compared = [_nearest(asked, other) for other in earlier]
    near = [found for found in compared if found.num_differing < cell]
    if not near or any(found.num_differing == 0 for found in near):
        return np.ones(len(asked.patients), dtype=bool)
    within = [found.shared for found in near if found.num_gone == 0]
    if within:
        return max(within, key=lambda shared: int(shared.sum()))
    closest = min(near, key=lambda found: found.num_differing)
    left = np.unique(asked.patients[closest.shared])
    # By whom is gone, so that another patient's going leaves others out.
    order = left[np.argsort(mixed(_names(asked, left) ^ mixed(np.array([closest.gone ^ key]))))]
    for number in range(cell - closest.num_gone, len(order) - cell + 1):
        rows = closest.shared & ~np.isin(asked.patients, order[:number])
        tried = [_nearest(asked.take(rows), other).num_differing for other in earlier]
        if all(differing == 0 or differing >= cell for differing in tried):
            return rows
    return None


def _nearest(asked: TrainedSet, other: TrainedSet) -> _Compared:
    kinds = zip(asked.hashes, other.hashes, strict=False)  # images have one kind of hash
    found = [_compare(asked, ours, other, theirs) for ours, theirs in kinds]
    return min(found, key=lambda one: one.num_differing)


def _compare(asked: TrainedSet, ours: Hashes, other: TrainedSet, theirs: Hashes) -> _Compared:
    shared, kept = np.isin(ours, theirs), np.isin(theirs, ours)
    return _Compared(
        shared,
        len(np.unique(asked.patients[~shared])),
        len(np.unique(other.patients[~kept])),
        np.bitwise_xor.reduce(theirs[~kept], initial=np.uint64(0)),
    )


def _names(asked: TrainedSet, patients: NDArray[np.int64]) -> Hashes:
    """One hash for each of these patients: the least of its rows'."""
    order = np.lexsort((asked.hashes[0], asked.patients))
    firsts = np.searchsorted(asked.patients[order], patients)
    return asked.hashes[0][order][firsts]


def _told_apart(hashes: Hashes, keys: Hashes) -> Hashes:
    """Keyed, and different for equal rows."""
    keyed = mixed(hashes ^ keys[0])
    return mixed(keyed ^ mixed(times_before(keyed) ^ keys[1]))
