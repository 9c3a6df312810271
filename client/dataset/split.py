"""The user's test set: patients on whom no model is trained.

Where a study's settings are being chosen, a fold of the training part takes its place, and the
true test part is not used at all.
"""

import hashlib
from collections import Counter
from dataclasses import dataclass
from math import floor

import numpy as np
from numpy.typing import NDArray

from erosion.common.errors import DataError
from erosion.common.study.selection import Fold
from erosion.common.study.study import Study


@dataclass(frozen=True, slots=True)
class Split:
    """Indices of patients, ascending."""

    training: NDArray[np.int64]
    test: NDArray[np.int64]


def split_patients(
    study: Study,
    hospital: str,
    rows: NDArray[np.float64] | NDArray[np.uint8],
    labels: NDArray[np.int64],
) -> Split:
    """Split a hospital's patients (n, ...) into a training and a test part, class by class.

    Only the user has a test part: `evaluation.test_share` of each class, rounded, where a class of
    two or more patients keeps at least one on both sides and a single patient is trained on.

    Each patient draws a lot: a hash of (study seed, study name, hospital) and of the patient's own
    values. So the split is the same in every run and process, does not change with the order of
    the rows in the file, and hardly changes when patients are added.
    """
    if hospital != study.user:
        return Split(np.arange(len(labels)), np.zeros(0, dtype=np.int64))
    lots = _lots(f"{study.seed}/{study.name}/{hospital}/", rows, labels)
    training: list[int] = []  # by class, then by lot
    test: list[int] = []
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label).tolist()
        members.sort(key=lots.__getitem__)
        count = _test_count(len(members), study.evaluation.test_share)
        test += members[:count]
        training += members[count:]
    if study.fold is not None:
        training, test = _folded(training, study.fold, hospital)
    return Split(np.array(sorted(training)), np.array(sorted(test), dtype=np.int64))


def _folded(training: list[int], fold: Fold, hospital: str) -> tuple[list[int], list[int]]:
    """The training part without the fold, and the fold: every `of`-th patient, class by class."""
    if len(training) < fold.of:
        raise DataError(
            f"selection.folds = {fold.of}; {hospital} has {len(training)} training patients. Write"
            " fewer folds, or leave out [selection]."
        )
    held_out = training[fold.number :: fold.of]
    return sorted(set(training) - set(held_out)), held_out


def _test_count(num_patients: int, test_share: float) -> int:
    if num_patients < 2:
        return 0
    return min(max(floor(test_share * num_patients + 0.5), 1), num_patients - 1)


def _lots(
    seed: str, rows: NDArray[np.float64] | NDArray[np.uint8], labels: NDArray[np.int64]
) -> list[bytes]:
    """A pseudo-random lot for every patient."""
    # 0.0 for -0.0, and one byte order, so that equal patients are equal bytes everywhere.
    stable = rows if rows.dtype == np.uint8 else (rows + 0.0).astype("<f8")
    seen: Counter[bytes] = Counter()
    lots = []
    for row, label in zip(stable, labels.tolist(), strict=True):
        patient = hashlib.sha256(f"{seed}{label}/".encode() + row.tobytes()).digest()
        # Patients with equal values draw different lots; which of them is which does not matter.
        lots.append(hashlib.sha256(patient + seen[patient].to_bytes(8, "big")).digest())
        seen[patient] += 1
    return lots
