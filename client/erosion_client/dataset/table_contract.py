"""Validates a hospital's table against the study's data contract."""

import difflib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from erosion_client.dataset.column_values import (
    GROUPED,
    LIMIT,
    MISSING_MARKERS,
    REFUSED,
    Fault,
    groups_by_point,
    toml_key,
)
from erosion_client.dataset.preparation import (
    NOT_A_DATE,
    REMEDY,
    nearly_bare,
    on_other_rows,
    stand_apart,
)
from erosion_client.dataset.single_column import few_of, odd_among
from erosion_client.dataset.sources.data_source import TableSource
from erosion_client.dataset.study_columns import (
    StudyColumn,
    check_maps,
    decimal_mark,
    study_columns,
)
from erosion_client.dataset.task_checks import checked_targets
from erosion_client.dataset.text_table import MOST_EXACT, NumberColumn, TextColumn, TextTable
from erosion_client.scaffold.vocabulary import change_of_header, header_unit, mixed_units, unit_text
from erosion_common.errors import DataError
from erosion_common.support.text import printable, significant, some
from erosion_common.tasks.features import CategoryMissing, NumberFeature, NumberMissing
from erosion_common.tasks.inputs import TabularTask
from erosion_common.tasks.task import Targets

ROWS_AT_ONCE = 4096
MAX_PROBLEMS = 30  # a message longer than a screen is not read
SHOWN_VALUES = 3  # examples of each problem
SHOWN_CODES = 8  # values listed of a column that lie far from all others
ALIKE = 0.8  # similarity of two columns' names, from 0 to 1, worth asking about
FEWEST_FOR_TYPICAL = 20  # values needed to compare their median with the study's `typical`
FEWEST_BARE = 5  # rows without nearly any feature that are worth a note
UNTYPICAL = 2.0  # widths of `typical` to the median; 3.4 deviations of a normal distribution
ROUNDED = re.compile(r"\d(\.\d+)?[eE]\+\d{2,3}|(\d{16}\.0)")  # a long number as spreadsheets and
# programs write it; in the second form some are exact
STANDS_FOR = {"mode": " (the commonest)", "indicator": " (as missing)"}  # after their number


def _rounded(column: TextColumn) -> list[str]:
    """Return the whole numbers that may stand for several, because their last digits are lost."""
    if isinstance(column, NumberColumn):
        return [t for t in column.texts if t and abs(float(t)) >= column.exact]
    found = ((t, ROUNDED.fullmatch(t)) for t in column.texts)
    return [t for t, match in found if match and (not match[2] or float(t) >= MOST_EXACT)]


@dataclass(frozen=True, slots=True)
class CheckedTable:
    """The patients that meet the contract."""

    rows: NDArray[np.float64]
    # (n, features): the number, or the index of the category; NaN: to be imputed
    targets: Targets  # (n, ...) from the task; empty where no target was asked for
    places: NDArray[np.int64]  # (n,) index of each row in the file, from 0
    patients: NDArray[np.int64] | None  # (n,) equal for rows of one patient, where there is a key
    notes: tuple[str, ...]  # what was dropped or imputed
    is_test: NDArray[np.bool_] | None  # (n,) from the table; None where it was not asked for
    num_incomplete: int  # patients with rows that were dropped because a value is missing


def check_table(
    table: TextTable,
    task: TabularTask,
    source: TableSource,
    *,
    with_target: bool = True,
    split_column: str | None = None,
) -> CheckedTable:
    """Return the patients as numbers. Raises DataError with every problem in the file.

    The message quotes patients' values: it is for the hospital alone (`DataError.public`).
    """
    study = study_columns(table, task, source, with_target=with_target, split_column=split_column)
    check = _TableCheck(table, source, study, notes=list(table.notes))
    if source.decimal is None and decimal_mark(table, task, source) == ",":
        check.notes.append("numbers are written 1,5 (detected; decimal sets it)")
    unasked = () if with_target else [column.name for column in task.target_columns]
    problems, notes = check_maps(table, source, study, unasked)
    check.problems += problems
    check.notes += notes
    check.header()
    patients = check.patients()
    columns: list[NDArray[np.float64]] = []
    replaced, lacking = list[str](), list[str]()
    dropped = np.zeros(table.num_rows, dtype=bool)
    for feature in task.features:
        policy = task.policy(feature)
        values = check.column(feature.name, policy)
        columns.append(values)
        absent = np.isnan(values)
        if policy == "drop":
            dropped |= absent
            lacking += [f"{feature.name} {absent.sum()}"] if absent.any() else []
        elif absent.any():
            replaced.append(f"{feature.name} {absent.sum()}{STANDS_FOR.get(policy, '')}")
    target_columns = []
    for column in task.target_columns if with_target else ():
        # A patient without a target teaches nothing, so no policy imputes one.
        values = check.column(column.name, "refuse" if task.missing == "refuse" else "drop")
        target_columns.append(values)
        absent = np.isnan(values)
        dropped |= absent
        lacking += [f"{column.name} {absent.sum()}"] if absent.any() else []
    is_test = None
    if split_column is not None:
        is_test = check.column(split_column, "refuse") > 0
    if replaced:
        check.notes.append(f"missing values to be imputed: {', '.join(replaced)}")
    if dropped.any():
        check.notes.append(
            f"{dropped.sum()} of {len(dropped)} rows dropped, because a value is missing:"
            f" {', '.join(lacking)}"
        )
    if not check.problems:
        recorded = {f.name: v for f, v in zip(task.features, columns, strict=True)}
        check.features({n: v for n, v in recorded.items() if n not in source.absent}, dropped)
    if with_target and dropped.all() and not check.problems:
        named = zip(check.study, [*columns, *target_columns], strict=False)
        bare = [name for name, values in named if np.isnan(values).all()]
        where = f" (of {', '.join(bare)}: all)" if bare else ""
        check.problems.append(
            f"every patient lacks a value of a column whose missing values drop the patient{where};"
            f" fill them in, or {REMEDY}; for a feature the study could say"
            ' missing = "impute"'
        )
    if check.problems:
        raise DataError(_message(table, check.problems))
    kept = np.flatnonzero(~dropped)
    targets: Targets = kept[:0]
    if with_target:
        targets = checked_targets(task, np.stack(target_columns, axis=1)[kept])
    return CheckedTable(
        rows=_side_by_side(columns, kept),
        targets=targets,
        places=kept,
        patients=None if patients is None else patients[kept],
        notes=tuple(check.notes),
        is_test=None if is_test is None else is_test[kept],
        num_incomplete=int(dropped.sum()) if patients is None else len({*patients[dropped]}),
    )


def _side_by_side(
    columns: Sequence[NDArray[np.float64]], kept: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the kept rows (n,) of all columns: (n, columns), copied in parts that fit a cache."""
    rows = np.empty((len(kept), len(columns)))
    for start in range(0, len(kept), ROWS_AT_ONCE):
        part = kept[start : start + ROWS_AT_ONCE]
        np.stack([values[part] for values in columns], axis=1, out=rows[start : start + len(part)])
    return rows


def _alike(name: str, other: str) -> bool:
    one, two = (re.sub(r"[\W_]+", "", text.casefold()) for text in (name, other))
    return difflib.SequenceMatcher(None, one, two).ratio() >= ALIKE


@dataclass(slots=True)
class _TableCheck:
    """The problems and notes of one table."""

    table: TextTable
    source: TableSource
    study: dict[str, StudyColumn]
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def header(self) -> None:
        """Note columns that are missing."""
        header, found = self.table.header, len(self.problems)
        for name in self.study:
            self.problems += [
                self._missing_column(name, local)
                for local in self.source.needed(name)
                if local not in header
            ]
        mark = next((mark for mark in ";\t|," if mark in "".join(header[:1])), None)
        if len(self.problems) > found and len(header) == 1 and mark:
            shown = "\\t" if mark == "\t" else mark
            remedy = f'write separator = "{shown}" under [data]'
            if "separator" not in type(self.source).model_fields:
                remedy = (
                    "its lines may differ in length, or be no table; read it as one file with"
                    ' source = "table", which says where'
                )
            self.problems.append(f"the file has a single column; {remedy}")

    def column(self, name: str, policy: NumberMissing | CategoryMissing) -> NDArray[np.float64]:
        """Return a column as numbers: (n,), NaN where missing, faulty, or not in the file."""
        column = self.study[name]
        if column.text is None:
            if name in self.source.absent and column.can_be_absent and policy == "refuse":
                self.problems.append(
                    f"column {name} is absent here, and the study refuses missing values of it; let"
                    " the study say what stands for it (missing), or leave it out"
                )
            return np.full(self.table.num_rows, np.nan if name in self.source.absent else 0.0)
        values = column.numbers
        if len(others := np.flatnonzero(np.isnan(values))):
            read, values = column.text.take(others), values.copy()
            faulty: dict[Fault, list[int]] = {}  # fault -> indices of its texts
            found = np.full(len(read.texts), np.nan)
            for index, text in enumerate(read.texts):
                value = column.parse(text)
                if not isinstance(value, Fault) and math.isnan(value) and policy == "refuse":
                    value = REFUSED
                if isinstance(value, Fault):
                    faulty.setdefault(value, []).append(index)
                else:
                    found[index] = value
            values[others] = found[read.codes]
            for fault, texts in faulty.items():
                rows = others[np.isin(read.codes, texts)]
                self.problems.append(self._faulty_values(name, column.text, fault, rows))
        if isinstance(column.of, NumberFeature):
            self._numbers(column.of, column.text, values)
        return values

    def features(
        self, recorded: Mapping[str, NDArray[np.float64]], dropped: NDArray[np.bool_]
    ) -> None:
        """Note where the rows that are not dropped (n,) lack nearly all features, each (n,)."""
        if not recorded:
            return
        is_missing = np.stack([np.isnan(values) for values in recorded.values()], axis=1)
        if bare := stand_apart(is_missing[~dropped]):
            self.problems.append(
                f"{bare} of the {(~dropped).sum()} rows that are used lack nearly every feature"
                f" ({some(recorded)}), so a model would learn nothing from them: {REMEDY}; else"
                " fill them in"
            )
        elif (bare := int(nearly_bare(is_missing[~dropped]).sum())) > FEWEST_BARE:
            self.notes.append(
                f"{bare} of the {(~dropped).sum()} rows that are used lack nearly every feature:"
                f" {REMEDY}"
            )
        elif names := on_other_rows([*recorded], is_missing, ~dropped):
            self.notes.append(
                f"{some(names)}: nearly no row that is used has a value, and most of those that are"
                f" dropped have one: {REMEDY}"
            )

    def patients(self) -> NDArray[np.int64] | None:
        """Return a patient number per row: (n,); None where the site file names no key."""
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
        if rounded := _rounded(column):
            self.problems.append(
                f"patient key {key!r} is rounded, such as {rounded[0]!r}, so that patients with the"
                " same first digits cannot be told apart; export it as text"
            )
        return column.codes

    def _numbers(self, of: NumberFeature, column: TextColumn, values: NDArray[np.float64]) -> None:
        """Note what is read as numbers (n,) and may mean something else."""
        name = of.name
        is_found_out = self.source.decimal is None and self.source.thousands is None
        if is_found_out and groups_by_point(column.written):
            self.problems.append(f"column {name}: {GROUPED}")
        self._typical(of, values)
        self._unit(of)
        self._limits(name, column)
        x, rows = np.unique(values[~np.isnan(values)], return_counts=True)
        mixed = mixed_units(name, x, rows)
        if mixed is not None:
            self.notes.append(f"column {name}: {mixed}; if they are, export the column in one unit")
            if mixed.is_named:
                asked = (x < mixed.cut) == mixed.main_is_below
                x, rows = x[asked], rows[asked]
        if len(odd := odd_among(*few_of(x, rows))):
            apart = tuple(column.take(np.flatnonzero(np.isin(values, odd))).texts)
            more = f" and {len(apart) - SHOWN_CODES} more" if len(apart) > SHOWN_CODES else ""
            self.notes.append(
                f"column {name}: read as measurements, though far from all others:"
                f" {', '.join(map(repr, apart[:SHOWN_CODES]))}{more}; for “not known” write"
                f' "{apart[0]}" = "" under [data.values.{toml_key(name)}]'
            )

    def _typical(self, of: NumberFeature, values: NDArray[np.float64]) -> None:
        """Note where most values (n,) lie far from the study's typical ones."""
        if of.typical is None:
            return
        name, (low, high), known = of.name, of.typical, values[~np.isnan(values)]
        if len(known) < FEWEST_FOR_TYPICAL:
            return
        median = float(np.median(known))
        if max(low - median, median - high) > UNTYPICAL * (high - low):
            self.notes.append(
                f"column {name}: typically {significant(median)}, in the study {low:g} to {high:g};"
                " if it is in another unit, write the factor under [data.units]:"
                f" {toml_key(name)} = FACTOR"
            )

    def _limits(self, name: str, column: TextColumn) -> None:
        """Note how many values beyond a limit are read as what the site file declares."""
        if (limit := self.source.limits.get(name)) is None:
            return
        found = [i for i, text in enumerate(column.texts) if LIMIT.fullmatch(text)]
        rows = int(np.isin(column.codes, found).sum())
        read = "half of it below, and as it above" if limit == "half" else "the limit"
        if rows:
            self.notes.append(f"column {name}: {rows} values beyond a limit are read as {read}")

    def _unit(self, of: NumberFeature) -> None:
        """Note where a column's header has another unit than the study."""
        name, local = of.name, self.source.local_name(of.name)
        if name in self.source.units or name in self.source.derive:
            return
        change = change_of_header(name, local, of.unit)
        if change is not None:
            wanted = of.unit or header_unit(name)
            line = f"{toml_key(name)} = {unit_text(change)}"
            self.notes.append(
                f"column {name}: the study has it in {wanted}, and the file calls it {local!r}; if"
                f" that is its unit, write {line} under [data.units]"
            )

    def _missing_column(self, name: str, local: str) -> str:
        if name in self.source.derive:
            return (
                f"column {name} is derived from {local!r}, which is missing; correct"
                f" [data.derive.{toml_key(name)}]"
            )
        mapped = f" (the site file calls it {local!r})" if local != name else ""
        read = {self.source.local_name(other) for other in self.study}
        near = [each for each in self.table.header if _alike(each, local) and each not in read]
        example = near[0] if near else "ITS NAME IN THE FILE"
        question = f". Is it {' or '.join(map(repr, near))}?" if near else "; add it,"
        remedy = "if so," if near else "or"
        listed = json.dumps([name], ensure_ascii=False)
        absent = f"; if you do not record it, write absent = {listed} under [data]"
        return (
            f"column {name}{mapped} is missing{question} {remedy} write {toml_key(name)} ="
            f' "{example}" under [data.columns]{absent if self.study[name].can_be_absent else ""}'
        )

    def _faulty_values(
        self, name: str, column: TextColumn, fault: Fault, rows: NDArray[np.int64]
    ) -> str:
        local = self.source.local_name(name)
        called = f"column {name}" if local == name else f"column {name} ({local!r} in the file)"
        first = rows[:SHOWN_VALUES]
        shown = [
            f"{text.removeprefix(NOT_A_DATE)[:40]!r} on {self.table.place(row)}"
            for row, text in zip(first.tolist(), column.at(first), strict=True)
        ]
        more = f" and {len(rows) - len(shown)} more" if len(rows) > len(shown) else ""
        remedy = fault.remedy.format(key=toml_key(name))
        return f"{called}: {fault.wrong}: {', '.join(shown)}{more}; {remedy}"


def _message(table: TextTable, problems: Sequence[str]) -> str:
    shown = list(problems[:MAX_PROBLEMS])
    if len(problems) > len(shown):
        shown.append(f"and {len(problems) - len(shown)} more problems")
    # What was noticed while reading may be the reason.
    shown += [f"(noted: {note})" for note in table.notes]
    return f"{table.origin}:\n" + "\n".join(f"  {printable(p, at_most=len(p))}" for p in shown)
