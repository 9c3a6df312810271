"""Completeness of each column of a hospital's table: figures for the hospital's own eyes."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from erosion.client.dataset.column_values import Fault, Parse, feature_parser, target_parser
from erosion.client.dataset.load import table_source
from erosion.client.dataset.sources.data_source import TableSource
from erosion.client.dataset.table_contract import columns_of, decimal_mark
from erosion.client.dataset.text_table import TextColumn
from erosion.client.site_file import Site
from erosion.common.settings.codes import canonical
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
    decimal = decimal_mark(table, task, source)
    parsers = {f.name: feature_parser(f, decimal) for f in task.features}
    parsers |= {c.name: target_parser(c, decimal) for c in task.target_columns}
    for name, parse in parsers.items():
        in_file = source.local_name(name)
        if (column := table.columns.get(in_file)) is not None:
            yield _count(name, in_file, column, parse, source)


def _count(
    name: str, in_file: str, column: TextColumn, parse: Parse, source: TableSource
) -> ColumnCounts:
    meant = source.values.get(name, {})
    times = np.bincount(column.codes, minlength=len(column.texts)).tolist()
    counts = {"usable": 0, "missing": 0, "out_of_range": 0, "not_understood": 0}
    for text, patients in zip(column.texts, times, strict=True):
        counts[_kind(parse(meant.get(canonical(text), text)))] += patients
    return ColumnCounts(name, in_file, **counts)


def _kind(value: float | Fault) -> str:
    if isinstance(value, Fault):
        return "out_of_range" if value.is_range else "not_understood"
    return "missing" if math.isnan(value) else "usable"
