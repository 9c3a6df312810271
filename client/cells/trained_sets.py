"""Of whom updates are computed: of the same patients as before, or of sets that differ in a cell.

Training on all patients in one batch gives an update that is nearly a sum over them. Two such
updates, before and after one patient came, went or was corrected, or was left out for a missing
value of another study's columns, differ by that patient's record. So where a study's patients are
nearly those of an earlier one, the study gets the earlier one's patients; where some of these are
gone, others are left out with them, drawn by the site's secret, until a cell of patients differs.

A row is known again by its values as the study sees them, or by all that its source says of it; by
each of these a set must be the same as an earlier one or differ in a cell. Values that were trained
on before may be again: that update was given.
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

    def has_values_of(self, other: "TrainedSet") -> bool:
        """Whether an update of it is one of the other, too."""
        return np.array_equal(np.sort(self.hashes[0]), np.sort(other.hashes[0]))

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
    if _may_be_trained_on(asked, earlier, cell):
        return np.ones(len(asked.patients), dtype=bool)
    near = [found for found in _compared(asked, earlier) if 0 < found.num_differing < cell]
    within = [found.shared for found in near if found.num_gone == 0]
    for rows in sorted(within, key=lambda shared: -int(shared.sum())):
        if _may_be_trained_on(asked.take(rows), earlier, cell):
            return rows
    closest = min(near, key=lambda found: found.num_differing)
    left = np.unique(asked.patients[closest.shared])
    # By whom is gone, so that another patient's going leaves others out.
    order = left[np.argsort(mixed(_names(asked, left) ^ mixed(np.array([closest.gone ^ key]))))]
    for number in range(cell - closest.num_gone, len(order) - cell + 1):
        rows = closest.shared & ~np.isin(asked.patients, order[:number])
        if _may_be_trained_on(asked.take(rows), earlier, cell):
            return rows
    return None


def _may_be_trained_on(asked: TrainedSet, earlier: Sequence[TrainedSet], cell: int) -> bool:
    """Whether an update of it was given before, or differs from each in nobody or in a cell."""
    if any(asked.has_values_of(other) for other in earlier):
        return True
    differing = [found.num_differing for found in _compared(asked, earlier)]
    return all(number == 0 or number >= cell for number in differing)


def _compared(asked: TrainedSet, earlier: Sequence[TrainedSet]) -> list[_Compared]:
    """Beside every earlier set, by every kind of hash that both have: some have one."""
    return [
        _compare(asked, ours, other, theirs)
        for other in earlier
        for ours, theirs in zip(asked.hashes, other.hashes, strict=False)
    ]


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
