"""The study's columns as a hospital's table has them, by what its site file declares."""

import difflib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from erosion_client.dataset.column_values import (
    Column,
    DecimalMark,
    Fault,
    NumberMarks,
    Parse,
    column_parser,
    found_decimal,
    plain_numbers,
    toml_key,
)
from erosion_client.dataset.preparation import NOT_A_DATE, YEARS, time_between
from erosion_client.dataset.sources.data_source import TableSource
from erosion_client.dataset.text_table import NumberColumn, TextColumn, TextTable
from erosion_common.settings.names import canonical
from erosion_common.tasks.features import CategoryFeature, NumberFeature
from erosion_common.tasks.inputs import TabularTask
from erosion_common.tasks.task import CodedColumn

SPLIT = CodedColumn("split", {"train": 0.0, "test": 1.0}, "neither train nor test")


@dataclass(frozen=True, slots=True)
class StudyColumn:
    """One column of the study."""

    of: Column
    text: TextColumn | None  # the name in the data; None where there is none
    plain: Parse  # from a text in the study's own words
    parse: Parse  # from a text in the data
    numbers: NDArray[np.float64]  # (n,) the same of plain numbers; NaN: parse it
    can_be_absent: bool  # nothing replaces an outcome, nor a split


def study_columns(
    table: TextTable,
    task: TabularTask,
    source: TableSource,
    *,
    with_target: bool = True,
    split_column: str | None = None,
) -> dict[str, StudyColumn]:
    """Return the study's columns by name: features first, then the target, then a split's."""
    marks = NumberMarks(decimal_mark(table, task, source), source.thousands or "")
    columns: list[Column] = [*task.features, *(task.target_columns if with_target else ())]
    if split_column is not None:
        columns.append(replace(SPLIT, name=split_column))
    found = {}
    for number, column in enumerate(columns):
        name, text = column.name, _text(table, source, column.name)
        unit, is_derived = source.units.get(name), name in source.derive
        own = plain = column_parser(column, unit=unit)
        if not is_derived:
            own = column_parser(column, replace(marks, limit=source.limits.get(name)), unit)
        numbers = np.full(table.num_rows, np.nan)
        if text is not None:
            own = _for_typed(text, plain, own)
            is_pointed = marks.decimal == "." and marks.thousands != "."
            is_plain = is_pointed or isinstance(text, NumberColumn) or is_derived
            if isinstance(column, NumberFeature) and is_plain and not source.value_map(name):
                numbers = plain_numbers(text.numbers, column, unit)
        parse = _mapped(own, source, name)
        found[name] = StudyColumn(column, text, own, parse, numbers, number < len(task.features))
    return found


def _for_typed(text: TextColumn, plain: Parse, written: Parse) -> Parse:
    """Return the parser of a column in which the source's own numbers need no marks."""
    if isinstance(text, NumberColumn):
        return plain
    typed = text.typed
    return (lambda t: plain(t) if t in typed else written(t)) if typed else written


def columns_of(
    task: TabularTask,
    source: TableSource,
    *,
    with_target: bool = True,
    split_column: str | None = None,
) -> list[str]:
    """Return the data's own names of the columns to read."""
    columns = [*task.features, *(task.target_columns if with_target else ())]
    names = [*(column.name for column in columns), *([split_column] if split_column else [])]
    needed = [local for name in names for local in source.needed(name)]
    return needed if source.patient is None else [*needed, source.patient]


def codes_of(task: TabularTask, source: TableSource) -> dict[str, Collection[str]]:
    """Return the study's categories and classes, by the data's own names of their columns."""
    return {
        source.local_name(column.name): (
            column.categories if isinstance(column, CategoryFeature) else column.codes
        )
        for column in (*task.features, *task.target_columns)
        if not isinstance(column, NumberFeature)
    }


def decimal_mark(table: TextTable, task: TabularTask, source: TableSource) -> DecimalMark:
    """Return the site file's decimal mark, or else the one that the study's numbers show."""
    if source.stated_decimal is not None:
        return source.stated_decimal
    numbers = [*task.features, *task.target_columns]
    names = [source.local_name(n.name) for n in numbers if isinstance(n, NumberFeature)]
    columns = (table.columns[name] for name in names if name in table.columns)
    return found_decimal(text for column in columns for text in column.written)


def _text(table: TextTable, source: TableSource, name: str) -> TextColumn | None:
    if name in source.absent:
        return None
    if name in source.derive:
        return time_between(table, source.derive[name], source.value_map(name))
    return table.columns.get(source.local_name(name))


def _mapped(parse: Parse, source: TableSource, name: str) -> Parse:
    """Return the parser of the data's own words."""
    meant: Mapping[str, str] = source.value_map(name)
    if name in source.derive:
        wanted = source.derive[name]
        not_a_date = Fault(
            f"no date of the form {wanted.date_format} from {YEARS.start} to {YEARS.stop - 1}",
            'correct it, or set date_format under [data.derive.{key}]; mapped to "" under'
            " [data.values.{key}], it is missing",
        )
        return lambda text: not_a_date if text.startswith(NOT_A_DATE) else parse(text)
    return (lambda text: parse(meant.get(canonical(text), text))) if meant else parse


Findings = tuple[list[str], list[str]]  # problems and notes


def check_maps(
    table: TextTable, source: TableSource, columns: dict[str, StudyColumn], unasked: Collection[str]
) -> Findings:
    """Check every declaration against the study's columns and the table's values."""
    problems, notes = list[str](), list[str]()
    for where, name in _declared(source):
        if name in columns or name in unasked:
            continue
        near = difflib.get_close_matches(name, columns, n=1, cutoff=0.8)
        if near and name not in table.header:
            problems.append(
                f"{where} names {name!r}, which is no column of the study; did you mean"
                f" {near[0]!r}? Correct it, or remove it"
            )
        else:
            notes.append(f"{where} names {name!r}, which this study does not use")
    problems.extend(_read_twice(source, columns))
    for name, column in columns.items():
        is_read = column.text is not None and name not in source.derive
        if is_read and (meant := source.value_map(name)):
            notes.extend(_notes_of_map(name, column, meant))
    for name in source.absent:
        if name in columns and not columns[name].can_be_absent:
            problems.append(
                f"absent names {name!r}, which is no feature of the study: a hospital that does not"
                " record it cannot take part. Remove it from absent; if the file calls it"
                f' otherwise, write {toml_key(name)} = "ITS NAME IN THE FILE" under [data.columns]'
            )
        elif name in columns and source.local_name(name) in table.header:
            problems.append(
                f"absent names {name!r}, and there is such a column; remove it from absent, or"
                " rename the column if it is another one"
            )
    return problems, notes


def _declared(source: TableSource) -> Iterator[tuple[str, str]]:
    """Yield every table of the site file that names a column of a study, with the name."""
    for where, names in (
        ("[data.columns]", source.columns),
        ("[data.units]", source.units),
        ("[data.limits]", source.limits),
        ("[data.derive]", source.derive),
    ):
        yield from ((where, name) for name in names)
    yield from ((f"[data.values.{name}]", name) for name in source.values)
    yield from (("absent", name) for name in source.absent)


def _read_twice(source: TableSource, columns: dict[str, StudyColumn]) -> Iterator[str]:
    """Yield the problem of a column of the data that would be two of the study's."""
    readers: dict[str, list[str]] = {}
    for name in columns:
        if name not in source.absent and name not in source.derive:
            readers.setdefault(source.local_name(name), []).append(name)
    for local, names in readers.items():
        if len(names) > 1:
            features = [name for name in names if columns[name].can_be_absent]
            instead = f", or list {' or '.join(features)} as absent" if features else ""
            yield (
                f"{' and '.join(names)} are both read from the column {local!r}; say under"
                f" [data.columns] where each is{instead}"
            )


def _notes_of_map(name: str, column: StudyColumn, meant: dict[str, str]) -> Iterator[str]:
    texts = {canonical(text) for text in column.text.texts} if column.text else set()
    for value, one, other in () if isinstance(column.of, NumberFeature) else _merged(meant, texts):
        yield (
            f"column {name}: {one!r} and {other!r} are both read as {value!r}, by the map for it;"
            " correct it, if they are two"
        )
    if not any(key in texts for key in meant):
        listed = ", ".join(list(meant)[:5])
        yield f"no value that is mapped for {name} ({listed}) is in the data"


def _merged(meant: dict[str, str], texts: set[str]) -> Iterator[tuple[str, str, str]]:
    """Yield the problem of a map to a value of the study that the data also contain."""
    for key, value in meant.items():
        is_other = key.casefold() != value.casefold()
        is_itself = value in texts and meant.get(value, value) == value
        if value and is_other and key in texts and is_itself:
            yield value, key, value
