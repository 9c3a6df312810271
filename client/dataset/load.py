"""Reads a hospital's patients and validates them against the study's data contract."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from erosion.client.dataset.same_patient import same_patient
from erosion.client.dataset.sources.data_source import DataSource, ImageSource, TableSource
from erosion.client.dataset.sources.labelled_images import FaultyImagesError
from erosion.client.dataset.study_columns import columns_of, study_column_names
from erosion.client.dataset.table_contract import candidates, check_table, missing_columns
from erosion.client.dataset.text_table import TextTable
from erosion.client.site_file import Site
from erosion.common.errors import DataError
from erosion.common.study.study import Study
from erosion.common.support.files import write_atomically
from erosion.common.tasks.inputs import ImageTask, TabularTask
from erosion.common.tasks.task import Targets, Task

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
    """Read the same for any hospital of the study; only the columns matter here.

    `records`: the folder for a list of all files that cannot be used, where a message has room for
    only some.
    """
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
    table = source.read(wanted)
    names = study_column_names(task, split_column=split_column)
    missing = missing_columns(table, names, source)
    if missing and (asked := candidates(table, missing)):
        table = source.read([*wanted, *asked])  # so that their values can be inspected
    checked = check_table(table, task, source, split_column=split_column)
    places = [table.place(row) for row in checked.places.tolist()]
    labels, label_word = _labels_of_table(source, table, checked.places)
    read = Patients(
        checked.rows,
        checked.targets,
        np.arange(len(checked.rows)),
        checked.notes,
        checked.is_test,
        None if table.row_hashes is None else table.row_hashes[checked.places],
        checked.patients,
        labels,
        label_word,
    )
    return _grouped(source, read, places, "rows")


def _labels_of_table(
    source: TableSource, table: TextTable, kept: NDArray[np.int64]
) -> tuple[NDArray[np.object_], str]:
    """Return the patient key of these rows, or without one their numbers in the table, from 1."""
    if source.patient is not None:
        key = table.columns[source.patient]
        return np.array(key.texts, dtype=object)[key.codes[kept]], "patient"
    rows = np.arange(table.num_rows) if table.positions is None else table.positions
    return (rows[kept] + 1).astype(str).astype(object), "row"


def _load_images(source: ImageSource, task: ImageTask, records: Path | None) -> Patients:
    try:
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
    )
    return _grouped(source, read, found.places, "images")


def _listed(problems: Sequence[str], records: Path | None) -> str:
    """Write the full list of problems, for the owner alone; "" where it is short."""
    if records is None or len(problems) <= SHOWN_ROWS:
        return ""
    try:
        write_atomically(records / LIST, "\n".join(problems) + "\n", mode=0o600)
    except OSError:  # `check` reports what is wrong with the folder
        return ""
    return f"\n  all {len(problems)} are listed in {records / LIST}"


def _grouped(source: DataSource, read: Patients, places: Sequence[str], what: str) -> Patients:
    """Return the rows with ties to one patient; `places` and `what`: people's names for them."""
    found = same_patient(read.rows, read.targets, read.keys)
    notes = list(read.notes)
    kept = np.arange(len(read.rows))
    if len(found.exact):
        action = "kept on one side of the split" if read.is_test is None else "kept"
        if source.duplicates == "drop":
            action = "dropped"
            kept = np.setdiff1d(kept, found.exact)
        notes.append(
            f"{_number(found.exact, what)} the same as another one, {action}:"
            f" {_some(found.exact, places)}"
        )
    if len(found.near):
        notes.append(
            f"{_number(found.near, what)} nearly the same as another one:"
            f" {_some(found.near, places)}; if they are of one patient, let a patient key say so"
        )
    return replace(
        read,
        rows=read.rows[kept],
        targets=read.targets[kept],
        groups=np.unique(found.groups[kept], return_inverse=True)[1],
        notes=tuple(notes),
        is_test=None if read.is_test is None else read.is_test[kept],
        row_hashes=None if read.row_hashes is None else read.row_hashes[kept],
        keys=None if read.keys is None else read.keys[kept],
        labels=read.labels[kept],
    )


def _number(rows: NDArray[np.int64], what: str) -> str:
    return f"1 of the {what} is" if len(rows) == 1 else f"{len(rows)} {what} are"


def _some(rows: NDArray[np.int64], places: Sequence[str]) -> str:
    shown = ", ".join(places[row] for row in rows.tolist()[:SHOWN_ROWS])
    return shown + (", ..." if len(rows) > SHOWN_ROWS else "")


def checked_for(study: Study, site: Site, patients: Patients) -> Patients:
    """Check that a model can be measured on the user's patients; a peer only gets a note."""
    if site.name == study.user and (seen := _tested_and_trained_on(patients)):
        note = (
            f"{seen} test patients have rows among the training patients, too"
            " (evaluation.split_column): figures of them are not of new patients"
        )
        patients = replace(patients, notes=(*patients.notes, note))
    outcomes = patients.outcomes(study.task)
    if doubt := study.task.doubt_about(outcomes):
        patients = replace(patients, notes=(*patients.notes, doubt))
    what = study.task.why_unmeasurable(outcomes)
    if not what:
        return patients
    if site.name == study.user:
        raise DataError(
            f"{site.data.describe()}: {what}, so there is nothing to measure a model on."
            f" {study.task.unmeasurable_remedy}"
        )
    return replace(patients, notes=(*patients.notes, what))


def _tested_and_trained_on(patients: Patients) -> int:
    """Return how many patients the table itself puts on both sides of the split."""
    if patients.is_test is None:
        return 0
    tested, trained_on = patients.groups[patients.is_test], patients.groups[~patients.is_test]
    return len(np.intersect1d(tested, trained_on))
