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
    feature_parser,
    target_parser,
)
from erosion.client.dataset.decimal_mark import DecimalMark, found_decimal
from erosion.client.dataset.sources.data_source import TableSource
from erosion.client.dataset.text_table import TextColumn, TextTable
from erosion.common.errors import DataError
from erosion.common.settings.codes import canonical
from erosion.common.tasks.features import MissingPolicy, NumberFeature
from erosion.common.tasks.inputs import TabularTask
from erosion.common.tasks.task import CodedColumn, Targets

MAX_PROBLEMS = 30  # a message longer than a screen is not read
SHOWN_VALUES = 3  # examples of each problem
SPLIT = CodedColumn("split", {"train": 0.0, "test": 1.0}, "neither train nor test")


@dataclass(frozen=True, slots=True)
class CheckedTable:
    """The patients that meet the contract."""

    rows: NDArray[np.float64]
    # (n, features): the number, or the index of the category; NaN where it is to be imputed
    targets: Targets  # (n, ...) as the task has them; empty where no target was asked for
    places: NDArray[np.int64]  # (n,) index of each row in the file, from 0
    patients: NDArray[np.int64] | None  # (n,) equal for rows of one patient, where there is a key
    notes: tuple[str, ...]  # what was dropped or imputed
    is_test: NDArray[np.bool_] | None  # (n,) as the table says; None where it was not asked


def columns_of(
    task: TabularTask,
    source: TableSource,
    *,
    with_target: bool = True,
    split_column: str | None = None,
) -> list[str]:
    """The file's own names of the columns that are to be read."""
    names = [source.local_name(name) for name in _study_columns(task, with_target, split_column)]
    return names if source.patient is None else [*names, source.patient]


def check_table(
    table: TextTable,
    task: TabularTask,
    source: TableSource,
    *,
    with_target: bool = True,
    split_column: str | None = None,
) -> CheckedTable:
    """The patients as numbers; raises DataError with every problem in the file.

    The message quotes patients' values: it is for the hospital alone (`DataError.public`).
    """
    check = _Check(table, source, notes=list(table.notes))
    decimal = decimal_mark(table, task, source)
    if source.decimal is None and decimal == ",":
        check.notes.append("numbers are written 1,5 (found out; decimal sets it)")
    check.header(_study_columns(task, with_target, split_column))
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
    target_columns = []
    for column in task.target_columns if with_target else ():
        # A patient without a target teaches nothing, so no policy imputes one.
        policy = "refuse" if task.missing == "refuse" else "drop"
        values = check.column(column.name, target_parser(column, decimal), policy)
        target_columns.append(values)
        dropped |= np.isnan(values)
    is_test = None
    if split_column is not None:
        is_test = check.column(split_column, target_parser(SPLIT), "refuse") > 0
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
        targets=task.targets(np.stack(target_columns, axis=1)[kept]) if with_target else kept[:0],
        places=kept,
        patients=None if patients is None else patients[kept],
        notes=tuple(check.notes),
        is_test=None if is_test is None else is_test[kept],
    )


def decimal_mark(table: TextTable, task: TabularTask, source: TableSource) -> DecimalMark:
    """The mark that the site file gives, or else the one that the study's numbers show."""
    if source.decimal is not None:
        return source.decimal
    wanted = (*task.features, *task.target_columns)
    names = [source.local_name(c.name) for c in wanted if isinstance(c, NumberFeature)]
    columns = (table.columns[name] for name in names if name in table.columns)
    return found_decimal(text for column in columns for text in column.texts)


def _study_columns(task: TabularTask, with_target: bool, split_column: str | None) -> list[str]:
    features = [feature.name for feature in task.features]
    targets = [column.name for column in task.target_columns] if with_target else []
    return [*features, *targets, *([split_column] if split_column else [])]


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
