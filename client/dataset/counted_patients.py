"""Of whom a study's updates are computed, and on whom its models are measured, as cells allow."""

import numpy as np
from numpy.typing import NDArray

from erosion.client.dataset.load import Patients
from erosion.client.dataset.split import Split, for_more_tested
from erosion.client.disclosure.control import DisclosureControl, Groups, Rows
from erosion.client.disclosure.patient_sets import Hashes
from erosion.common.errors import RunOver
from erosion.common.rounds.selection import folds_ahead
from erosion.common.study.study import Study
from erosion.common.tasks.task import Targets


class CountedPatients:
    """Whom a hospital trains on and measures on; nobody counts as either before `begin`."""

    def __init__(
        self, name: str, study: Study, patients: Patients, split: Split, cells: DisclosureControl
    ) -> None:
        """`name`: the hospital's. Raises Refusal for folds or a test part that show too few."""
        self._name, self._study, self._patients, self._cells = name, study, patients, cells
        is_user = name == study.user
        self._asked = self._whole = split.training
        if is_user and study.fold is not None:  # whom its study trains on
            self._whole = np.union1d(split.training, split.test)
        if is_user:  # of one fold, too: who asks it need not have asked the whole
            folds = folds_ahead(study) if study.fold is None else (study.fold,)
            cells.check_folds(name, folds, len(np.unique(patients.groups[self._whole])))
        self._measured: list[NDArray[np.int64]] = []
        if is_user:
            # Without a test part, the final figures are of all patients, each with its fold. The
            # folds of two cuts may nearly agree, so of these all patients are looked at.
            every = np.arange(len(patients.targets))
            self._measured = [every if study.evaluation.folds is not None else split.test]
            if study.selection_fold is not None:
                self._measured.append(every)  # as with the folds of an evaluation
        # What a peer sends of a study with privacy has noise, which hides one patient more or less.
        # Whether others are trained on, and how, must not depend on that one.
        self.is_noised = study.privacy is not None and not is_user
        self.has_begun = False
        self._check_measured(is_noted=False)
        self.training = self._settled(is_noted=False)  # indices, ascending

    @property
    def notes(self) -> tuple[str, ...]:
        """Of those who are left out of training."""
        left_out = len(self._asked) - len(self.training)
        if not left_out:
            return ()
        return (
            f"{left_out} rows are left out of training: an earlier study was trained on nearly"
            f" the same patients, and with these two updates would show fewer than"
            f" {self._cells.cell} (limits.min_cell)",
        )

    def begin(self) -> None:
        """Note of whom updates are computed and models measured, before the first of either.

        Raises Refusal, and notes nobody, where another study began meanwhile, of nearly the same
        patients.
        """
        if self.has_begun:
            return
        with self._cells.transaction():
            self._check_measured(is_noted=True)
            if not np.array_equal(self._settled(is_noted=True), self.training):
                raise RunOver(
                    f"{self._name} trained on nearly these patients in another study since it was"
                    " asked about this one: start a new run."
                )
        self.has_begun = True

    def _check_measured(self, *, is_noted: bool) -> None:
        for part in self._measured:
            self._cells.check_test_part(
                self._name,
                *self._hashed(part),
                is_noted=is_noted,
                remedy=for_more_tested(self._study),
            )

    def _settled(self, *, is_noted: bool) -> NDArray[np.int64]:
        """Who is trained on, without those left out whom two studies' updates would show."""
        if self.is_noised:
            return self._asked  # of whom nothing exact is told that could be held to another update
        # All folds together are the study's patients, so whoever is left out is left out of each.
        whole = self._whole[self._trained_on(self._whole, is_noted=is_noted)]
        # A fold of an evaluation is a cell, and those of two cuts may nearly agree.
        if self._name == self._study.user and self._study.selection_fold is not None:
            self._trained_on(self._asked, is_noted=is_noted)
        return np.intersect1d(self._asked, whole)

    def _trained_on(self, rows: NDArray[np.int64], *, is_noted: bool) -> NDArray[np.bool_]:
        """Who of these rows (n,) may be trained on: (n,). Settings are chosen with all or none."""
        study = self._study
        chooses = study.selection is not None or study.selection_fold is not None
        return self._cells.trained_on(
            self._name,
            *self._hashed(rows),
            is_noted=is_noted,
            may_leave_out=not (chooses and self._name == study.user),
        )

    def _hashed(self, rows: NDArray[np.int64]) -> tuple[Rows, Targets, Groups, Hashes | None]:
        """These rows of the patients as `cells` knows them again."""
        of, hashes = self._patients, self._patients.row_hashes
        whole = None if hashes is None else hashes[rows]
        return of.rows[rows], of.targets[rows], of.groups[rows], whole
