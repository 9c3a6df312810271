"""The user's test set: patients that no model is trained on.

While a study's settings are chosen, a fold of the training part takes its place, and the true test
part is not used at all. In a cross-fitted evaluation every patient is in a fold that is the test
set once per cut, and the final models are trained on all.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from erosion_client.dataset.load import Patients
from erosion_client.disclosure.control import DisclosureControl, Groups, Rows
from erosion_client.disclosure.patient_sets import Hashes
from erosion_common.errors import DataError, RunOver
from erosion_common.rounds.selection import folds_ahead
from erosion_common.study.sections import Fold
from erosion_common.study.study import Study
from erosion_common.tasks.inputs import TabularTask
from erosion_common.tasks.task import Targets, Task


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
    every row is a separate patient). Only the user has a test part: `evaluation.test_share` of the
    patients of each stratum. A stratum of two or more patients keeps at least one on both sides; a
    single patient is trained on. The task defines the strata; for a classification they are the
    classes.

    Each patient draws one lot, regardless of its number of rows: a hash of (study seed, study name,
    hospital) and of the values of all its rows. So the split is the same in every run and process,
    does not change with the order of the rows in the file, and hardly changes when patients are
    added. Where the table itself declares the test patients (`is_test`, (n,)), that is the split,
    and no hospital trains on them.
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
    hashes = _row_hashes(f"{study.seed}/{study.name}/{hospital}/{cut}", rows, targets)
    patients = _by_lot(_patients(study.task, groups, targets), hashes)
    if fold is not None:
        by_stratum = sorted(patients, key=lambda patient: patient.stratum)
        training, test = _folded(by_stratum, fold)
        return Split(_rows(training), _rows(test))
    training, test = [], []  # by stratum, then by lot
    for stratum in sorted({patient.stratum for patient in patients}):
        members = [patient for patient in patients if patient.stratum == stratum]
        tested = _num_tested(len(members), study.evaluation.test_share)
        test += members[:tested]
        training += members[tested:]
    if study.selection_fold is not None:
        training, test = _folded(training, study.selection_fold)
    return Split(_rows(training), _rows(test))


def for_more_tested(study: Study) -> str:
    """Return what to change in the study so that more of the user's patients are tested."""
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
    """Return the split that the table declares. Raises DataError where a part is empty."""
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
    patients = _patients(study.task, groups[training], targets[training])  # in the table's order
    rest, held_out = _folded(sorted(patients, key=lambda p: p.stratum), study.fold)
    return Split(training[_rows(rest)], training[_rows(held_out)])


@dataclass(frozen=True, slots=True)
class _Patient:
    """Rows that stay together."""

    stratum: int  # of the target that counts as the patient's
    rows: tuple[int, ...]


def _patients(task: Task, groups: NDArray[np.int64], targets: Targets) -> list[_Patient]:
    """Return every patient, in the order of their first rows."""
    strata = task.strata(task.targets_of_patients(targets, groups)).tolist()
    members: dict[int, list[int]] = {}
    for row, group in enumerate(groups.tolist()):
        members.setdefault(group, []).append(row)
    by_number = dict(zip(sorted(members), strata, strict=True))
    return [_Patient(by_number[group], tuple(rows)) for group, rows in members.items()]


def _by_lot(patients: list[_Patient], hashes: list[bytes]) -> list[_Patient]:
    """Return the patients in a pseudo-random order that depends on their rows' values alone."""
    seen: Counter[bytes] = Counter()
    lots: dict[_Patient, bytes] = {}
    for patient in patients:
        every = sorted(hashes[row] for row in patient.rows)
        values = every[0] if len(every) == 1 else hashlib.sha256(b"".join(every)).digest()
        # Patients with equal values draw different lots; which is which does not matter.
        lots[patient] = hashlib.sha256(values + seen[values].to_bytes(8, "big")).digest()
        seen[values] += 1
    return sorted(patients, key=lots.__getitem__)


def _num_tested(num_patients: int, test_share: float) -> int:
    """Return how many of a stratum's patients are tested: of two or more at least one, not all."""
    if num_patients < 2:
        return 0
    wanted = test_share * num_patients
    nearest = sum(place + 0.5 <= wanted for place in range(num_patients))
    return min(max(nearest, 1), num_patients - 1)


def _rows(patients: list[_Patient]) -> NDArray[np.int64]:
    return np.array(sorted(row for patient in patients for row in patient.rows), dtype=np.int64)


def _folded(training: list[_Patient], fold: Fold) -> tuple[list[_Patient], list[_Patient]]:
    """Return the training part without the fold, and the fold: each `of`-th patient per stratum."""
    held_out = training[fold.number :: fold.of]
    kept = set(held_out)
    return [patient for patient in training if patient not in kept], held_out


def _winsorised(task: Task | None, rows: Rows) -> Rows:
    """Return rows (n, features) after the cuts, as updates are computed from them."""
    if not isinstance(task, TabularTask):
        return rows
    cuts = [getattr(each, "winsorise", None) or (-np.inf, np.inf) for each in task.features]
    lows, highs = np.array(cuts).T
    return np.clip(rows.astype(np.float64), lows, highs)


def _row_hashes(
    seed: str, rows: NDArray[np.float64] | NDArray[np.uint8], targets: Targets
) -> list[bytes]:
    """Return a hash of every row's values."""
    # 0.0 for -0.0, and one byte order, so that equal patients are equal bytes everywhere.
    stable = rows if rows.dtype == np.uint8 else (rows + 0.0).astype("<f8")
    return [
        hashlib.sha256(f"{seed}{target}/".encode() + row.tobytes()).digest()
        for row, target in zip(stable, targets.tolist(), strict=True)
    ]


class CountedPatients:
    """The patients that a hospital trains and measures on; no patient counts before `begin`."""

    def __init__(
        self, name: str, study: Study, patients: Patients, split: Split, cells: DisclosureControl
    ) -> None:
        """Check the folds and the test part. Raises Refusal where they show too few patients."""
        self._name, self._study, self._patients, self._cells = name, study, patients, cells
        is_user = name == study.user
        self._asked = self._whole = split.training
        if is_user and study.fold is not None:  # its study trains on the fold
            self._whole = np.union1d(split.training, split.test)
        if is_user:  # for one fold, too: it may be asked without the whole
            folds = folds_ahead(study) if study.fold is None else (study.fold,)
            cells.check_folds(name, folds, len(np.unique(patients.groups[self._whole])))
        self._measured: list[NDArray[np.int64]] = []
        if is_user:
            # Without a test part, the final figures are of all patients, each with its fold. The
            # folds of two cuts may nearly agree, so all patients are checked for these.
            every = np.arange(len(patients.targets))
            self._measured = [every if study.evaluation.folds is not None else split.test]
            if study.selection_fold is not None:
                self._measured.append(every)  # as with the folds of an evaluation
        # A peer's updates in a study with privacy have noise, which hides one patient more or less.
        # Whether others are trained on, and how, must not depend on that one.
        self.is_noised = study.privacy is not None and not is_user
        self.has_begun = False
        self._check_measured(self._measured, is_noted=False)
        self.training = self._settled(is_noted=False)  # indices, ascending

    @property
    def notes(self) -> tuple[str, ...]:
        """About patients who are left out of training."""
        left_out = len(self._asked) - len(self.training)
        if not left_out:
            return ()
        return (
            f"{left_out} rows are left out of training: an earlier study was trained on nearly"
            f" the same patients, and with these two updates would show fewer than"
            f" {self._cells.cell} (limits.min_cell)",
        )

    def begin(self) -> None:
        """Note the patients of updates and measurements, before the first of either."""
        if self.has_begun:
            return
        with self._cells.transaction():
            self._check_measured(self._measured, is_noted=True)
            if not np.array_equal(self._settled(is_noted=True), self.training):
                raise RunOver(
                    f"{self._name} trained on nearly these patients in another study since it was"
                    " asked about this one: start a new run."
                )
        self.has_begun = True

    def measure_training(self) -> None:
        """Note that a model is measured on the training patients. Raises Refusal."""
        self._check_measured([self.training], is_noted=True)

    def _check_measured(self, parts: Sequence[NDArray[np.int64]], *, is_noted: bool) -> None:
        for part in parts:
            self._cells.check_test_part(
                self._name,
                *self._hashed(part),
                is_noted=is_noted,
                remedy=for_more_tested(self._study),
            )

    def _settled(self, *, is_noted: bool) -> NDArray[np.int64]:
        """Return the training patients without those that two studies' updates would disclose."""
        if self.is_noised:
            return self._asked  # they have no exact figures to compare with another update
        # All folds together are the study's patients, so a patient is left out of all or none.
        whole = self._whole[self._trained_on(self._whole, is_noted=is_noted)]
        # A fold of an evaluation is a cell, and those of two cuts may nearly agree.
        if self._name == self._study.user and self._study.selection_fold is not None:
            self._trained_on(self._asked, is_noted=is_noted)
        return np.intersect1d(self._asked, whole)

    def _trained_on(self, rows: NDArray[np.int64], *, is_noted: bool) -> NDArray[np.bool_]:
        """Return which rows (n,) may be trained on: (n,). Settings are chosen with all or none."""
        study = self._study
        chooses = study.selection is not None or study.selection_fold is not None
        return self._cells.trained_on(
            self._name,
            *self._hashed(rows, self._study.task),
            is_noted=is_noted,
            may_leave_out=not (chooses and self._name == study.user),
        )

    def _hashed(
        self, rows: NDArray[np.int64], cut_by: Task | None = None
    ) -> tuple[Rows, Targets, Groups, Hashes | None]:
        """Return these patients' rows in the form that `cells` recognises."""
        of, hashes = self._patients, self._patients.row_hashes
        whole = None if hashes is None else hashes[rows]
        return _winsorised(cut_by, of.rows[rows]), of.targets[rows], of.groups[rows], whole
