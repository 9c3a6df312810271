"""The patients that a site last read, kept for the next study that uses them."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from erosion.client.dataset.load import Patients, checked_for, read_patients
from erosion.client.site_file import Site
from erosion.client.training.kept_state import OF_A_RUN, KeptState, Moment, StateKey
from erosion.common.errors import Refusal
from erosion.common.study.study import Study

_BEGUN, _AFTER = Moment(1), Moment(2)


class KeptPatients:
    """Reads the patients once for a run, with all of its folds, trials and users.

    A run keeps the patients that it began with, even if the data change. For another run, or for
    none, a changed file is read again, and a query or database always: a change there shows only by
    reading.
    """

    def __init__(self, site: Site, state: KeptState | None = None) -> None:
        """Start empty. `state`: where it is kept with which patients a run began."""
        self._site, self._state = site, state
        self._patients: Patients | None = None
        self._seen = ""  # the part of the patients that was read
        self._run: str | None = None  # run that has them; None: none
        self._begun = ""  # run for which its first patients are noted

    def of(self, study: Study, run: str | None = "") -> Patients:
        """Return the patients as the study sees them. Raises DataError as `load_patients` does.

        `run`: that they are for; None where columns are only described. Raises Refusal at the
        user's site where the run began with others that are no longer in memory.
        """
        wanted = None if run is None else _run_of(study, run)
        if self._patients is not None and wanted is not None and wanted == self._run:
            return checked_for(study, self._site, self._patients)
        patients = self._read(study, keep=wanted is not None or self._run is None)
        patients = checked_for(study, self._site, patients)
        if run and self._began_with_others(study, run, patients):
            patients = self._changed(study, patients)
        if wanted is not None:
            self._run = wanted
        return patients

    def begin(self, study: Study, run: str) -> None:
        """Note with which patients the run begins, once. Raises SiteError."""
        if not run or self._state is None or self._patients is None or run == self._begun:
            return
        if self._run == _run_of(study, run):
            place = _place(study, run)
            if not self._state.has(place, _BEGUN):
                self._state.keep(place, _BEGUN, {}, {"patients": _fingerprint(self._patients)})
            self._begun = run

    def _read(self, study: Study, *, keep: bool) -> Patients:
        """Return current data, or earlier ones where these cannot have changed."""
        # Before reading: a file that changes meanwhile has another revision next time.
        revision = self._site.data.revision()
        seen = json.dumps([revision, *_columns(study)])
        if self._patients is not None and revision is not None and seen == self._seen:
            return self._patients
        if not keep:  # a run keeps its patients
            return read_patients(self._site.data, study, self._site.records)
        self._patients = None  # so that two copies are never in memory
        self._run = None
        read = read_patients(self._site.data, study, self._site.records)
        self._patients, self._seen = read, seen
        return self._patients

    def _began_with_others(self, study: Study, run: str, patients: Patients) -> bool:
        if self._state is None:
            return False
        begun = self._state.before(_place(study, run), _AFTER)
        return bool(begun) and not torch.equal(begun["patients"], _fingerprint(patients))

    def _changed(self, study: Study, patients: Patients) -> Patients:
        """Return the current patients with a note; Refusal where figures depend on the former."""
        if self._site.name == study.user:
            raise Refusal(
                f"The data of {self._site.name} have changed since the run began, and those it"
                " began with are not in its program's memory any more: the run's figures would be"
                " of other patients. Restore the former data, or start a new run."
            )
        note = (
            f"{self._site.data.describe()}: the data have changed since the run began, and those it"
            " began with are not in memory: it continues with the current ones"
        )
        return replace(patients, notes=(*patients.notes, note))


def _columns(study: Study) -> tuple[str | None, str]:
    """Return the columns that a study sees."""
    return study.evaluation.split_column, study.task.model_dump_json()


def _run_of(study: Study, run: str) -> str:
    """Return the run that has the same patients: runs of several users share a name."""
    return json.dumps(
        [run.removesuffix(f".{study.user}"), study.name, study.seed, *_columns(study)]
    )


def _place(study: Study, run: str) -> StateKey:
    digest = hashlib.sha256(_run_of(study, run).encode()).hexdigest()
    return StateKey(digest, OF_A_RUN, run, digest)


def _fingerprint(patients: Patients) -> Tensor:
    """Return a hash, equal for the same patients in any order: (32,) uint8."""
    rows = np.ascontiguousarray(patients.rows)
    targets = np.ascontiguousarray(patients.targets)
    each = sorted(
        hashlib.sha256(row.tobytes() + target.tobytes()).digest()
        for row, target in zip(rows, targets, strict=True)
    )
    return torch.tensor(list(hashlib.sha256(b"".join(each)).digest()), dtype=torch.uint8)
