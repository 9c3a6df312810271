"""The user's test set: patients on whom no model is trained.

Where a study's settings are being chosen, a fold of the training part takes its place, and the
true test part is not used at all. In a cross-fitted evaluation every patient is in a fold that is
the test set once for each cut, and the final models are trained on all.
"""

import hashlib
from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from erosion.common.errors import DataError
from erosion.common.study.selection import Fold
from erosion.common.study.study import Study
from erosion.common.tasks.task import Targets


@dataclass(frozen=True, slots=True)
class Split:
    """Indices of patients, ascending."""

    training: NDArray[np.int64]
    test: NDArray[np.int64]


def split_patients(
    study: Study,
    hospital: str,
    rows: NDArray[np.float64] | NDArray[np.uint8],
    targets: Targets,
    groups: NDArray[np.int64] | None = None,
    is_test: NDArray[np.bool_] | None = None,
) -> Split:
    """Split a hospital's rows (n, ...) into a training and a test part, stratum by stratum.

    `groups`: (n,) rows with the same number are of one patient and stay on one side (by default
    every row is a patient of its own). Only the user has a test part: `evaluation.test_share` of
    the rows of each stratum, as nearly as the patients' rows allow, where one of two or more
    patients keeps at least one on both sides and a single patient is trained on. The task says what
    the strata are; for a classification they are the classes.

    Each row draws a lot: a hash of (study seed, study name, hospital) and of the row's own values;
    a patient has the least lot of its rows. So the split is the same in every run and process, does
    not change with the order of the rows in the file, and hardly changes when patients are added.
    Where the table itself says who is tested on (`is_test`, (n,)), that is the split, and no
    hospital trains on them.
    """
    groups = np.arange(len(targets)) if groups is None else groups
    if is_test is not None:
        return _declared(study, hospital, targets, groups, is_test)
    if hospital != study.user:
        return Split(np.arange(len(targets)), np.zeros(0, dtype=np.int64))
    fold = study.evaluation_fold
    if study.evaluation.folds is not None and fold is None:
        return Split(np.arange(len(targets)), np.zeros(0, dtype=np.int64))
    cut = "" if fold is None else f"{fold.cut}/"
    lots = _lots(f"{study.seed}/{study.name}/{hospital}/{cut}", rows, targets)
    strata = study.task.strata(targets)
    training: list[_Patient] = []  # by stratum, then by lot
    test: list[_Patient] = []
    patients = _patients(groups, strata, lots)
    if fold is not None:
        by_stratum = sorted(patients, key=lambda patient: patient.stratum)
        training, test = _folded(by_stratum, fold)
        return Split(_rows(training), _rows(test))
    for stratum in np.unique(strata).tolist():
        members = [patient for patient in patients if patient.stratum == stratum]
        tested = _tested(members, study.evaluation.test_share)
        test += tested
        training += [patient for patient in members if patient not in tested]
    if study.selection_fold is not None:
        training, test = _folded(training, study.selection_fold)
    return Split(_rows(training), _rows(test))


def for_more_tested(study: Study) -> str:
    """What the study has to change for more of the user's patients to be tested."""
    if study.selection_fold is not None:
        return "write fewer selection.folds"
    if (column := study.evaluation.split_column) is not None:
        return f'let the column {column} (evaluation.split_column) say "test" of more patients'
    return "raise evaluation.test_share"


def _declared(
    study: Study,
    hospital: str,
    targets: Targets,
    groups: NDArray[np.int64],
    is_test: NDArray[np.bool_],
) -> Split:
    """The split that the table states; raises DataError where a part is empty."""
    training, test = np.flatnonzero(~is_test), np.flatnonzero(is_test)
    is_user = hospital == study.user
    if not len(training) or (is_user and not len(test)):
        raise DataError(
            f"Column {study.evaluation.split_column} (evaluation.split_column) has"
            f" {len(training)} training and {len(test)} test rows at {hospital}; there must be some"
            " of both."
        )
    if not is_user:
        return Split(training, test[:0])
    if study.fold is None:
        return Split(training, test)
    in_order = [place.to_bytes(8, "big") for place in range(len(training))]  # the table's
    patients = _patients(groups[training], study.task.strata(targets)[training], in_order)
    rest, held_out = _folded(sorted(patients, key=lambda p: p.stratum), study.fold)
    return Split(training[_rows(rest)], training[_rows(held_out)])


@dataclass(frozen=True, slots=True)
class _Patient:
    """Rows that stay together."""

    lot: bytes
    stratum: int  # the last among its rows: that of a patient who ever was positive
    rows: tuple[int, ...]


def _patients(
    groups: NDArray[np.int64], strata: NDArray[np.int64], lots: list[bytes]
) -> list[_Patient]:
    """Every patient, by lot."""
    members: dict[int, list[int]] = {}
    for row, group in enumerate(groups.tolist()):
        members.setdefault(group, []).append(row)
    return sorted(
        (
            _Patient(min(lots[row] for row in rows), int(strata[rows].max()), tuple(rows))
            for rows in members.values()
        ),
        key=lambda patient: patient.lot,
    )


def _tested(members: list[_Patient], test_share: float) -> set[_Patient]:
    """The first patients of a stratum by lot whose rows make up the share, leaving one to train."""
    if len(members) < 2:
        return set()
    wanted = test_share * sum(len(patient.rows) for patient in members)
    tested: list[_Patient] = []
    num_rows = 0
    for patient in members:
        # Half of its rows: so the share is met to the nearest row, as rounding does.
        if num_rows + len(patient.rows) / 2 <= wanted:
            tested.append(patient)
            num_rows += len(patient.rows)
    if not tested:
        tested = [min(members, key=lambda patient: len(patient.rows))]
    return set(tested if len(tested) < len(members) else tested[:-1])


def _rows(patients: list[_Patient]) -> NDArray[np.int64]:
    return np.array(sorted(row for patient in patients for row in patient.rows), dtype=np.int64)


def _folded(training: list[_Patient], fold: Fold) -> tuple[list[_Patient], list[_Patient]]:
    """The training part without the fold, and the fold: every `of`-th patient of each stratum."""
    held_out = training[fold.number :: fold.of]
    kept = set(held_out)
    return [patient for patient in training if patient not in kept], held_out


def _lots(
    seed: str, rows: NDArray[np.float64] | NDArray[np.uint8], targets: Targets
) -> list[bytes]:
    """A pseudo-random lot for every row."""
    # 0.0 for -0.0, and one byte order, so that equal patients are equal bytes everywhere.
    stable = rows if rows.dtype == np.uint8 else (rows + 0.0).astype("<f8")
    seen: Counter[bytes] = Counter()
    lots = []
    for row, target in zip(stable, targets.tolist(), strict=True):
        patient = hashlib.sha256(f"{seed}{target}/".encode() + row.tobytes()).digest()
        # Rows with equal values draw different lots; which of them is which does not matter.
        lots.append(hashlib.sha256(patient + seen[patient].to_bytes(8, "big")).digest())
        seen[patient] += 1
    return lots
