"""Reads a hospital's patients for a study, validates them, and keeps them for its runs."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from erosion_client.dataset.same_patient import same_patient
from erosion_client.dataset.sources.data_source import (
    DataSource,
    ImageSource,
    TableSource,
    unchanged,
)
from erosion_client.dataset.sources.labelled_images import FaultyImagesError
from erosion_client.dataset.study_columns import codes_of, columns_of
from erosion_client.dataset.table_contract import check_table
from erosion_client.dataset.text_table import TextTable
from erosion_client.site_file import Site
from erosion_client.training.kept_state import OF_A_RUN, KeptState, Moment, StateKey
from erosion_common.errors import DataError, NotReady, Refusal
from erosion_common.learning.local_work import Tensors
from erosion_common.study.study import Study
from erosion_common.support.files import write_atomically
from erosion_common.support.text import some
from erosion_common.tasks.inputs import ImageTask, TabularTask
from erosion_common.tasks.task import Targets, Task

SHOWN_ROWS = 5  # examples in a note
LIST = "unusable-files.txt"  # in the records folder


@dataclass(frozen=True, slots=True)
class Patients:
    """What a study sees of a hospital, before scaling."""

    rows: NDArray[np.float64] | NDArray[np.uint8]
    # (n, features): the number, or the index of the category, NaN where it is to be imputed;
    # for images (n, channels, height, width): pixels
    targets: Targets  # (n, ...) from the task
    groups: NDArray[np.int64]  # (n,) index of each row's patient, from 0
    notes: tuple[str, ...]  # notes for the hospital's own log
    is_test: NDArray[np.bool_] | None = None  # (n,) from the table; None: it does not say
    row_hashes: NDArray[np.uint64] | None = None  # (n,) of everything the source says of a row,
    # including columns that the study does not use; None: unknown
    keys: NDArray[np.int64] | None = None  # (n,) equal for rows of one identifier; None: there
    # are no identifiers
    labels: NDArray[np.object_] = field(default_factory=lambda: np.empty(0, dtype=object))
    # (n,) the hospital's names for them
    label_word: str = "row"  # what a label denotes
    num_recorded: int = 0  # rows or images in the source, those that are left out included
    num_unreadable: int = 0  # files among these that are left out because they cannot be read
    num_incomplete: int = 0  # patients with rows among these left out, because a value is missing
    num_repeated: int = 0  # patients with rows that equal an earlier one

    @property
    def num_patients(self) -> int:
        """Patients, of which each may have several rows."""
        return int(self.groups.max()) + 1 if len(self.groups) else 0

    def outcomes(self, task: Task) -> Targets:
        """Each patient's target, by its index: (patients, ...)."""
        return task.targets_of_patients(self.targets, self.groups)


def load_patients(site: Site, study: Study) -> Patients:
    """Read the site's data for a study. Raises DataError with every problem that it finds."""
    return checked_for(study, site, read_patients(site.data, study, site.records))


def read_patients(source: DataSource, study: Study, records: Path | None = None) -> Patients:
    """Read the same for any hospital of the study; only the columns matter here."""
    task = study.task
    if isinstance(task, TabularTask):
        return _load_table(table_source(source), task, study.evaluation.split_column)
    assert isinstance(task, ImageTask)
    return _load_images(image_source(source), task, records)


def table_source(source: DataSource) -> TableSource:
    """Return the source if it gives a table. Raises DataError."""
    if isinstance(source, TableSource):
        return source
    raise DataError(
        f"{source.describe()} is read as images, but the study wants a table: give a table file, or"
        " another data.source."
    )


def image_source(source: DataSource) -> ImageSource:
    """Return the source if it gives images. Raises DataError."""
    if isinstance(source, ImageSource):
        return source
    raise DataError(
        f"{source.describe()} is read as a table, but the study wants images: give an .npz with"
        " images and labels, a folder with one folder of images per class, or another data.source."
    )


def _load_table(source: TableSource, task: TabularTask, split_column: str | None) -> Patients:
    wanted = columns_of(task, source, split_column=split_column)
    codes = codes_of(task, source)
    table = source.read(wanted, codes)
    checked = check_table(table, task, source, split_column=split_column)
    labels, label_word = _labels_of_table(source, table, checked.places)
    read = Patients(
        checked.rows,
        checked.targets,
        np.arange(len(checked.rows)),
        checked.notes,
        checked.is_test,
        table.row_hashes[checked.places],
        checked.patients,
        labels,
        label_word,
        table.num_rows,
        num_incomplete=checked.num_incomplete,
    )
    return _grouped(read, lambda row: table.place(int(checked.places[row])), "rows")


def _labels_of_table(
    source: TableSource, table: TextTable, kept: NDArray[np.int64]
) -> tuple[NDArray[np.object_], str]:
    """Return the patient key of these rows, or without one their numbers in the table, from 1."""
    if source.patient is not None:
        key = table.columns[source.patient]
        return np.array([*key.texts], dtype=object)[key.codes[kept]], "patient"
    return (table.positions[kept] + 1).astype(str).astype(object), "row"


def _load_images(source: ImageSource, task: ImageTask, records: Path | None) -> Patients:
    try:
        with unchanged(source, source.revision):
            found = source.read(task)
    except FaultyImagesError as problem:
        raise DataError(f"{problem}{_listed(problem.problems, records)}") from None
    notes = found.notes
    if listed := _listed(found.left_out, records):
        notes = (*notes, listed.strip())
    read = Patients(
        found.images,
        found.targets,
        np.arange(len(found.images)),
        notes,
        found.is_test,
        found.row_hashes,
        found.patients,
        np.array(found.places, dtype=object),
        "image",
        len(found.images) + len(found.left_out),
        len(found.left_out),
    )
    return _grouped(read, found.places.__getitem__, "images")


def _listed(problems: Sequence[str], records: Path | None) -> str:
    """Write the full list of problems, for the owner alone; "" where it is short."""
    if records is None or len(problems) <= SHOWN_ROWS:
        return ""
    try:
        write_atomically(records / LIST, "\n".join(problems) + "\n", mode=0o600)
    except OSError:  # `check` reports what is wrong with the folder
        return ""
    return f"\n  all {len(problems)} are listed in {records / LIST}"


def _grouped(read: Patients, place: Callable[[int], str], what: str) -> Patients:
    """Return the rows with ties to one patient; `place` and `what`: people's names for them."""
    found = same_patient(read.rows, read.targets, read.keys)
    notes = list(read.notes)
    if len(found.exact):
        action = "kept on one side of the split" if read.is_test is None else "kept"
        notes.append(
            f"{_number(found.exact, what)} the same as another one, {action}:"
            f" {some(map(place, found.exact.tolist()))}"
        )
    if len(found.near):
        notes.append(
            f"{_number(found.near, what)} nearly the same as another one:"
            f" {some(map(place, found.near.tolist()))}; if they are of one patient, let"
            " a patient key say so"
        )
    repeated = len(np.unique(found.groups[found.exact]))
    return replace(read, groups=found.groups, notes=tuple(notes), num_repeated=repeated)


def _number(rows: NDArray[np.int64], what: str) -> str:
    return f"1 of the {what} is" if len(rows) == 1 else f"{len(rows)} {what} are"


def checked_for(study: Study, site: Site, patients: Patients) -> Patients:
    """Check that a model can be measured on the user's patients; a peer only gets a note."""
    if site.name == study.user and patients.is_test is not None:  # by the table itself
        tested, trained_on = (
            patients.groups[part] for part in (patients.is_test, ~patients.is_test)
        )
        seen = len(np.intersect1d(tested, trained_on))
        if seen and patients.keys is not None:
            raise DataError(
                f"{seen} patients have training and test rows (evaluation.split_column), so they"
                " would be tested by models that know them; write the same on all rows of a"
                " patient.",
                where=site.data.describe(),
            )
        if seen:
            note = (
                f"{seen} test patients have rows among the training patients, too"
                " (evaluation.split_column): figures of them are not of new patients"
            )
            patients = replace(patients, notes=(*patients.notes, note))
    outcomes = patients.outcomes(study.task)
    if doubt := study.task.doubt_about(outcomes):
        patients = replace(patients, notes=(*patients.notes, doubt))
    if site.name == study.user and patients.is_test is not None and patients.is_test.any():
        tested = outcomes[np.unique(patients.groups[patients.is_test])]
        if few := study.task.why_unmeasurable(tested):
            where = "in the test part (evaluation.split_column)"
            few = f"{where} {few}, so its figures say little; let it have others, too"
            patients = replace(patients, notes=(*patients.notes, few))
    what = study.task.why_unmeasurable(outcomes)
    if not what:
        return patients
    if site.name == study.user:
        raise DataError(
            f"{what}, so there is nothing to measure a model on",
            remedy=study.task.unmeasurable_remedy,
            where=site.data.describe(),
        )
    return replace(patients, notes=(*patients.notes, what))


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
        self._begun: set[str] = set()  # places where a run's first patients are noted

    def of(self, study: Study, run: str | None = "") -> Patients:
        """Return the patients as the study sees them. Raises DataError as `load_patients` does.

        `run`: that they are for; None where columns are only described. Once it has begun, raises
        NotReady instead: a mount or database that is not back yet after a restart must not count
        as a refusal. Raises Refusal at the user's site where the run
        began with others that are no longer in memory.
        """
        wanted = None if run is None else _run_of(study, run)
        if self._patients is not None and wanted is not None and wanted == self._run:
            return checked_for(study, self._site, self._patients)
        begun: Tensors = {}
        if run and self._state is not None:
            begun = self._state.before(_place(study, run), _AFTER)
        try:
            patients = self._read(study, keep=wanted is not None or self._run is None)
            patients = checked_for(study, self._site, patients)
        except DataError:
            if not begun:
                raise
            raise NotReady(  # the status shows these words: no patient's value
                "the data of this run's patients cannot be read",
                where=self._site.data.describe(),
                remedy="`erosion check SITE.toml --study STUDY.toml` says why; the site continues"
                " once it can read them.",
            ) from None
        if begun and not torch.equal(begun["patients"], _fingerprint(patients)):
            patients = self._changed(study, patients)
        if wanted is not None:
            self._run = wanted
        return patients

    def begin(self, study: Study, run: str, patients: Patients) -> None:
        """Note with which patients the run begins, once. Raises SiteError.

        `patients`: its own; those of another study may have been read since.
        """
        place = _place(study, run)
        if not run or self._state is None or place.study in self._begun:
            return
        if self._state.last(place, _BEGUN) is None:
            self._state.keep(place, _BEGUN, {}, {"patients": _fingerprint(patients)})
        self._begun.add(place.study)

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

    def _changed(self, study: Study, patients: Patients) -> Patients:
        """Return the current patients with a note; Refusal where figures depend on the former."""
        if self._site.name == study.user:
            raise Refusal(
                f"The data of {self._site.name}, or what its site file says of them, have changed"
                " since the run began, and those it began with are not in its program's memory any"
                " more: the run's figures would be of other patients",
                remedy="Restore the former data and site file, or start a new run.",
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
    """Return a hash of the patients and their test marks, whatever their order: (32,) uint8.

    The site file or the table also decides which rows are one patient's and which are tested.
    """
    rows = np.ascontiguousarray(patients.rows)
    targets = np.ascontiguousarray(patients.targets)
    marks = [b""] * len(rows)
    if patients.is_test is not None:
        marks = [b"test" if is_tested else b"" for is_tested in patients.is_test.tolist()]
    of_patients: dict[int, list[bytes]] = {}
    for patient, row, target, mark in zip(
        patients.groups.tolist(), rows, targets, marks, strict=True
    ):
        digest = hashlib.sha256(row.tobytes() + target.tobytes() + mark).digest()
        of_patients.setdefault(patient, []).append(digest)
    each = sorted(hashlib.sha256(b"".join(sorted(of))).digest() for of in of_patients.values())
    return torch.tensor(list(hashlib.sha256(b"".join(each)).digest()), dtype=torch.uint8)
