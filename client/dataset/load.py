"""Reads a hospital's patients and validates them against the study's data contract."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from erosion.client.dataset.sources.data_source import DataSource, ImageSource, TableSource
from erosion.client.dataset.table_contract import check_table, columns_of
from erosion.client.site_file import Site
from erosion.common.errors import DataError
from erosion.common.study.study import Study, TabularTask


@dataclass(frozen=True, slots=True)
class Patients:
    """What a study sees of a hospital, before scaling."""

    rows: NDArray[np.float64] | NDArray[np.uint8]
    # (n, features): the number, or the index of the category, NaN where it is to be imputed;
    # or (n, channels, height, width): pixels
    labels: NDArray[np.int64]  # (n,) index of the class
    notes: tuple[str, ...]  # what the hospital should know, in its own log


def load_patients(site: Site, study: Study) -> Patients:
    """Read the site's data file; raises DataError with every problem that it finds."""
    task = study.task
    if isinstance(task, TabularTask):
        patients = _load_table(table_source(site.data), task)
    else:
        found = image_source(site.data).read(task)
        patients = Patients(found.images, found.labels, ())
    return _checked_classes(patients, site, study)


def table_source(source: DataSource) -> TableSource:
    """The source, if it gives a table; raises DataError."""
    if isinstance(source, TableSource):
        return source
    raise DataError(
        f"{source.describe()} is read as images, but the study wants a table: give a table file, or"
        " another data.source."
    )


def image_source(source: DataSource) -> ImageSource:
    """The source, if it gives images; raises DataError."""
    if isinstance(source, ImageSource):
        return source
    raise DataError(
        f"{source.describe()} is read as a table, but the study wants images: give an .npz with"
        " images and labels, a folder with one folder of images per class, or another data.source."
    )


def _load_table(source: TableSource, task: TabularTask) -> Patients:
    table = source.read(columns_of(task, source))
    checked = check_table(table, task, source)
    return Patients(checked.rows, checked.labels, checked.notes)


def _checked_classes(patients: Patients, site: Site, study: Study) -> Patients:
    """The user needs patients of two classes to be measured on; a peer is only told."""
    names = [label.name for label in study.task.classes]
    counts = np.bincount(patients.labels, minlength=len(names))
    if np.count_nonzero(counts) > 1 and (counts.max() > 1 or site.name != study.user):
        return patients
    if np.count_nonzero(counts) == 1:
        what = f"all {counts.max()} patients are of the class {names[int(counts.argmax())]!r}"
    else:
        what = "no class has two patients"
    if site.name == study.user:
        raise DataError(
            f"{site.data.describe()}: {what}, so there is nothing to measure a model on. Add"
            " patients of another class, or check the target column and [data.values]."
        )
    return Patients(patients.rows, patients.labels, (*patients.notes, what))
