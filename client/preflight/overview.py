"""Completeness of each column of a hospital's table: figures for the hospital's own eyes."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from erosion.client.dataset.column_values import Fault
from erosion.client.dataset.load import table_source
from erosion.client.dataset.study_columns import StudyColumn, columns_of, study_columns
from erosion.client.dataset.text_table import TextColumn
from erosion.client.site_file import Site
from erosion.common.tasks.inputs import TabularTask


@dataclass(frozen=True, slots=True)
class ColumnCounts:
    """One column of the study, in patients."""

    name: str
    in_file: str  # what the hospital calls it
    usable: int
    missing: int
    out_of_range: int
    not_understood: int  # no number, or no category of the study


def column_counts(site: Site, task: TabularTask) -> Iterator[ColumnCounts]:
    """Every column of the study that the file has. Raises DataError where it is no table."""
    source = table_source(site.data)
    table = source.read(columns_of(task, source))
    for column in study_columns(table, task, source).values():
        if column.text is not None:
            yield _count(column, column.text, ", ".join(source.needed(column.name)))


def _count(column: StudyColumn, text: TextColumn, in_file: str) -> ColumnCounts:
    times = np.bincount(text.codes, minlength=len(text.texts)).tolist()
    counts = {"usable": 0, "missing": 0, "out_of_range": 0, "not_understood": 0}
    for value, patients in zip(text.texts, times, strict=True):
        counts[_kind(column.parse(value))] += patients
    return ColumnCounts(column.name, in_file, **counts)


def _kind(value: float | Fault) -> str:
    if isinstance(value, Fault):
        return "out_of_range" if value.is_range else "not_understood"
    return "missing" if math.isnan(value) else "usable"
