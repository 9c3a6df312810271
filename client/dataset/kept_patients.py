"""The patients that a site read last, for the next study that sees the same of them."""

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
    """Reads the patients once for a run, with all of its folds and trials, and of its users.

    What a run began with it has to its end, whatever becomes of the data. For another run, or for
    none, a file that has changed is read again, and a query or a database always: whether what it
    gives has changed cannot be told without reading it.
    """

    def __init__(self, site: Site, state: KeptState | None = None) -> None:
        """Nothing is read yet. `state`: where it is kept with which patients a run began."""
        self._site, self._state = site, state
        self._patients: Patients | None = None
        self._seen = ""  # what of the patients was read
        self._run: str | None = None  # that has them; None: none
        self._begun = ""  # run for which it is noted with which patients it began

    def of(self, study: Study, run: str | None = "") -> Patients:
        """The patients as the study sees them. Raises DataError as `load_patients` does.

        `run`: that they are for; None: for none, as where columns are described. Raises Refusal at
        the user's site where the run began with others that are not in memory any more.
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
        """As the data are now; from another time, where these cannot have changed."""
        # Before reading: a file that changes meanwhile is another revision the next time.
        revision = self._site.data.revision()
        seen = json.dumps([revision, *_columns(study)])
        if self._patients is not None and revision is not None and seen == self._seen:
            return self._patients
        if not keep:  # what a run has is not taken from it
            return read_patients(self._site.data, study, self._site.records)
        self._patients = None  # so that two of them are not in memory
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
        """The patients of now, with a note; refused where figures are of them."""
        if self._site.name == study.user:
            raise Refusal(
                f"The data of {self._site.name} have changed since the run began, and those it"
                " began with are not in its program's memory any more: the run's figures would be"
                " of other patients. Bring the former data back, or start the run anew."
            )
        note = (
            f"{self._site.data.describe()}: the data have changed since the run began, and those it"
            " began with are not in memory: it goes on with those of now"
        )
        return replace(patients, notes=(*patients.notes, note))


def _columns(study: Study) -> tuple[str | None, str]:
    """What a study sees of the patients."""
    return study.evaluation.split_column, study.task.model_dump_json()


def _run_of(study: Study, run: str) -> str:
    """What has one and the same patients: the runs of several users of one study are called so."""
    return json.dumps(
        [run.removesuffix(f".{study.user}"), study.name, study.seed, *_columns(study)]
    )


def _place(study: Study, run: str) -> StateKey:
    digest = hashlib.sha256(_run_of(study, run).encode()).hexdigest()
    return StateKey(digest, OF_A_RUN, run, digest)


def _fingerprint(patients: Patients) -> Tensor:
    """Equal for the same patients, in any order: (32,) uint8."""
    rows = np.ascontiguousarray(patients.rows)
    targets = np.ascontiguousarray(patients.targets)
    each = sorted(
        hashlib.sha256(row.tobytes() + target.tobytes()).digest()
        for row, target in zip(rows, targets, strict=True)
    )
    return torch.tensor(list(hashlib.sha256(b"".join(each)).digest()), dtype=torch.uint8)
