"""Validates a hospital's table against the study's data contract."""

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from erosion.client.dataset.column_values import (
    MISSING_MARKERS,
    REFUSED,
    Fault,
    Parse,
    class_parser,
    feature_parser,
)
from erosion.client.dataset.decimal_mark import DecimalMark, found_decimal
from erosion.client.dataset.sources.data_source import TableSource
from erosion.client.dataset.text_table import TextColumn, TextTable
from erosion.common.errors import DataError
from erosion.common.study.study import MissingPolicy, NumberFeature, TabularTask, canonical

MAX_PROBLEMS = 30  # a message longer than a screen is not read
SHOWN_VALUES = 3  # examples of each problem


@dataclass(frozen=True, slots=True)
class CheckedTable:
    """The patients that meet the contract."""

    rows: NDArray[np.float64]
    # (n, features): the number, or the index of the category; NaN where it is to be imputed
    labels: NDArray[np.int64]  # (n,) index of the class; empty where no target was asked for
    places: NDArray[np.int64]  # (n,) index of each row in the file, from 0
    patients: NDArray[np.int64] | None  # (n,) equal for rows of one patient, where there is a key
    notes: tuple[str, ...]  # what was dropped or imputed


def columns_of(task: TabularTask, source: TableSource, *, with_target: bool = True) -> list[str]:
    """The file's own names of the columns that are to be read."""
    names = [source.local_name(name) for name in _study_columns(task, with_target)]
    return names if source.patient is None else [*names, source.patient]


def check_table(
    table: TextTable, task: TabularTask, source: TableSource, *, with_target: bool = True
) -> CheckedTable:
    """The patients as numbers; raises DataError with every problem in the file.

    The message quotes patients' values: it is for the hospital alone (`DataError.public`).
    """
    check = _Check(table, source, notes=list(table.notes))
    decimal = decimal_mark(table, task, source)
    if source.decimal is None and decimal == ",":
        check.notes.append("numbers are written 1,5 (found out; decimal sets it)")
    check.header(_study_columns(task, with_target))
    patients = check.patients()
    columns: list[NDArray[np.float64]] = []
    imputed: list[str] = []
    dropped = np.zeros(table.num_rows, dtype=bool)
    for feature in task.features:
        policy = feature.missing or task.missing
        parse = feature_parser(feature, decimal)
        values = check.column(feature.name, parse, policy)
        columns.append(values)
        absent = np.isnan(values)
        if policy == "drop":
            dropped |= absent
        elif absent.any():
            imputed.append(f"{feature.name} {absent.sum()}")
    labels = np.zeros(0)
    if with_target:
        # A patient without a label teaches nothing, so no policy imputes one.
        policy = "refuse" if task.missing == "refuse" else "drop"
        labels = check.column(task.target, class_parser(task.classes), policy)
        dropped |= np.isnan(labels)
    if imputed:
        check.notes.append(f"missing values to be imputed: {', '.join(imputed)}")
    if dropped.any():
        check.notes.append(
            f"{dropped.sum()} of {len(dropped)} patients dropped, because a value is missing"
        )
    if dropped.all() and not check.problems:
        check.problems.append(
            "every patient lacks a value of a column whose missing values drop the patient; fill"
            ' them in, or let the study say missing = "impute"'
        )
    if check.problems:
        raise DataError(_message(table, check.problems))
    kept = np.flatnonzero(~dropped)
    return CheckedTable(
        rows=np.stack([values[kept] for values in columns], axis=1),
        labels=labels[kept].astype(np.int64) if with_target else labels.astype(np.int64),
        places=kept,
        patients=None if patients is None else patients[kept],
        notes=tuple(check.notes),
    )


def decimal_mark(table: TextTable, task: TabularTask, source: TableSource) -> DecimalMark:
    """The mark that the site file gives, or else the one that the study's numbers show."""
    if source.decimal is not None:
        return source.decimal
    names = [source.local_name(f.name) for f in task.features if isinstance(f, NumberFeature)]
    columns = (table.columns[name] for name in names if name in table.columns)
    return found_decimal(text for column in columns for text in column.texts)


def _study_columns(task: TabularTask, with_target: bool) -> list[str]:
    return [feature.name for feature in task.features] + [task.target] * with_target


@dataclass(slots=True)
class _Check:
    """The problems and notes gathered over one table."""

    table: TextTable
    source: TableSource
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def header(self, wanted: Sequence[str]) -> None:
        """Note wanted columns that are missing, or that are one column of the file."""
        header = self.table.header
        taken: dict[str, str] = {}
        for name in wanted:
            local = self.source.local_name(name)
            if local in taken:
                self.problems.append(
                    f"columns {taken[local]} and {name} are both read from {local!r}; mend"
                    " [data.columns]"
                )
            taken[local] = name
        missing = [name for name in wanted if self.source.local_name(name) not in header]
        self.problems += [self._missing_column(name) for name in missing]
        mark = next((mark for mark in ";\t|," if mark in header[0]), None)
        if missing and len(header) == 1 and mark:
            shown = "\\t" if mark == "\t" else mark
            self.problems.append(
                f'the file has a single column; write separator = "{shown}" under [data]'
            )

    def column(self, name: str, parse: Parse, policy: MissingPolicy) -> NDArray[np.float64]:
        """One column as numbers: (n,), NaN where missing, faulty, or not in the file."""
        column = self.table.columns.get(self.source.local_name(name))
        if column is None:
            return np.zeros(self.table.num_rows)
        meant = self.source.values.get(name, {})
        values = np.full(len(column.texts), np.nan)
        faulty: dict[Fault, list[int]] = {}  # fault -> indices of the texts that have it
        for index, text in enumerate(column.texts):
            value = parse(meant.get(canonical(text), text))
            if not isinstance(value, Fault) and math.isnan(value) and policy == "refuse":
                value = REFUSED
            if isinstance(value, Fault):
                faulty.setdefault(value, []).append(index)
            else:
                values[index] = value
        for fault, texts in faulty.items():
            self.problems.append(self._faulty_values(name, column, fault, texts))
        return values[column.codes]

    def patients(self) -> NDArray[np.int64] | None:
        """A number for the patient of each row: (n,); None where the site file names no key."""
        key = self.source.patient
        if key is None:
            return None
        column = self.table.columns.get(key)
        if column is None:
            self.problems.append(
                f"patient = {key!r} is no column of it; correct it under [data], or leave it out if"
                " every row is another patient"
            )
            return None
        unnamed = [i for i, text in enumerate(column.texts) if text.lower() in MISSING_MARKERS]
        rows = np.flatnonzero(np.isin(column.codes, unnamed)).tolist()
        if rows:
            where = ", ".join(self.table.place(row) for row in rows[:SHOWN_VALUES])
            more = f" and {len(rows) - SHOWN_VALUES} more" if len(rows) > SHOWN_VALUES else ""
            self.problems.append(
                f"patient key {key!r} is empty on {where}{more}; fill it in, so that it is known"
                " which rows are of one patient"
            )
        return column.codes

    def _missing_column(self, name: str) -> str:
        local = self.source.local_name(name)
        mapped = f" (the site file calls it {local!r})" if local != name else ""
        by_small = {column.lower(): column for column in self.table.header}
        close = difflib.get_close_matches(local.lower(), list(by_small), n=2)
        near = [by_small[match] for match in close]
        there = f", but there is {' and '.join(map(repr, near))}" if near else ""
        example = near[0] if near else "ITS NAME IN THE FILE"
        return (
            f"column {name}{mapped} is missing{there}; add it, or write"
            f' {_toml_key(name)} = "{example}" under [data.columns]'
        )

    def _faulty_values(
        self, name: str, column: TextColumn, fault: Fault, texts: Sequence[int]
    ) -> str:
        local = self.source.local_name(name)
        called = f"column {name}" if local == name else f"column {name} ({local!r} in the file)"
        rows = np.flatnonzero(np.isin(column.codes, texts)).tolist()
        shown = [
            f"{column.texts[column.codes[row]][:40]!r} on {self.table.place(row)}"
            for row in rows[:SHOWN_VALUES]
        ]
        more = f" and {len(rows) - len(shown)} more" if len(rows) > len(shown) else ""
        remedy = fault.remedy.format(key=_toml_key(name))
        return f"{called}: {fault.wrong}: {', '.join(shown)}{more}; {remedy}"


def _toml_key(name: str) -> str:
    bare = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if bare else f'"{name}"'


def _message(table: TextTable, problems: Sequence[str]) -> str:
    shown = list(problems[:MAX_PROBLEMS])
    if len(problems) > len(shown):
        shown.append(f"and {len(problems) - len(shown)} more problems")
    return f"{table.origin}:\n" + "\n".join(f"  {problem}" for problem in shown)
