"""The study's columns as a hospital's table has them, by what its site file declares."""

import difflib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from erosion_client.dataset.column_values import (
    PLAIN_MARKS,
    DecimalMark,
    Fault,
    NumberMarks,
    Parse,
    feature_parser,
    found_decimal,
    target_parser,
    toml_key,
)
from erosion_client.dataset.preparation import NOT_A_DATE, YEARS, time_between
from erosion_client.dataset.sources.data_source import TableSource
from erosion_client.dataset.text_table import TextColumn, TextTable
from erosion_common.settings.names import canonical
from erosion_common.tasks.features import CategoryFeature, NumberFeature
from erosion_common.tasks.inputs import TabularTask
from erosion_common.tasks.task import CodedColumn, Task

SPLIT = CodedColumn("split", {"train": 0.0, "test": 1.0}, "neither train nor test")


@dataclass(frozen=True, slots=True)
class StudyColumn:
    """One column of the study."""

    name: str
    text: TextColumn | None  # the name in the data; None where there is none
    parse: Parse  # from a text in the data
    number: NumberFeature | None  # None: it has codes
    can_be_absent: bool  # nothing replaces an outcome, nor a split


def study_columns(
    table: TextTable,
    task: Task,
    source: TableSource,
    *,
    with_target: bool = True,
    split_column: str | None = None,
) -> dict[str, StudyColumn]:
    """Return the study's columns by name: features first, then the target, then a split's."""
    marks = NumberMarks(decimal_mark(table, task, source), source.thousands or "")
    texts: dict[str, TextColumn | None] = {}
    parsers: dict[str, Parse] = {}

    def add(name: str, parser: Callable[[NumberMarks], Parse]) -> None:
        texts[name] = text = _text(table, source, name)
        written = replace(marks, limit=source.limits.get(name))
        parsers[name] = parser(PLAIN_MARKS if name in source.derive else written)
        if text is not None and text.typed:  # the source's own numbers
            typed, plain, parse = text.typed, parser(PLAIN_MARKS), parsers[name]
            parsers[name] = lambda text: plain(text) if text in typed else parse(text)

    for feature in _features(task):
        unit = source.units.get(feature.name)
        add(feature.name, partial(feature_parser, feature, unit=unit))
    for column in task.target_columns if with_target else ():
        unit = source.units.get(column.name)
        add(column.name, partial(target_parser, column, unit=unit))
    if split_column is not None:
        add(split_column, partial(target_parser, SPLIT))
    columns = (*_features(task), *task.target_columns)
    numbers = {c.name: c for c in columns if isinstance(c, NumberFeature)}

    features = {feature.name for feature in _features(task)}
    return {
        name: StudyColumn(
            name,
            texts[name],
            _mapped(parse, source, name),
            numbers.get(name),
            name in features,
        )
        for name, parse in parsers.items()
    }


def _features(task: Task) -> tuple[NumberFeature | CategoryFeature, ...]:
    return task.features if isinstance(task, TabularTask) else ()


def columns_of(
    task: TabularTask,
    source: TableSource,
    *,
    with_target: bool = True,
    split_column: str | None = None,
) -> list[str]:
    """Return the data's own names of the columns to read."""
    names = [feature.name for feature in task.features]
    names += [column.name for column in task.target_columns if with_target]
    names += filter(None, [split_column])
    needed = [local for name in names for local in source.needed(name)]
    return needed if source.patient is None else [*needed, source.patient]


def decimal_mark(table: TextTable, task: Task, source: TableSource) -> DecimalMark:
    """Return the site file's decimal mark, or else the one that the study's numbers show."""
    if source.decimal is not None:
        return source.decimal
    if source.thousands in (".", ","):
        return "," if source.thousands == "." else "."
    numbers = [*_features(task), *task.target_columns]
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
    table: TextTable,
    source: TableSource,
    columns: dict[str, StudyColumn],
    unasked: Collection[str],
) -> Findings:
    """Check every declaration against the study's columns and the table's values."""
    problems, notes = found = list[str](), list[str]()
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
    for column in columns.values():
        if column.text is not None and column.name not in source.derive:
            notes.extend(_of_map(column, source.value_map(column.name)))
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
    return found


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
    for number, recoding in enumerate(source.recode, start=1):
        yield from ((f"[[data.recode]], number {number},", name) for name in recoding.columns)
    yield from (("absent", name) for name in source.absent)


def _read_twice(source: TableSource, columns: Collection[str]) -> Iterator[str]:
    """Yield the problem of a column of the data that would be two of the study's."""
    readers: dict[str, list[str]] = {}
    for name in columns:
        if name not in source.absent and name not in source.derive:
            readers.setdefault(source.local_name(name), []).append(name)
    for local, names in readers.items():
        if len(names) > 1:
            yield (
                f"{' and '.join(names)} are both read from the column {local!r}; say under"
                " [data.columns] where each is, or list a feature as absent"
            )


def _of_map(column: StudyColumn, meant: Mapping[str, str]) -> Iterator[str]:
    """Yield where a map of values has nothing to map, or makes one value of two."""
    texts = {canonical(text) for text in column.text.texts} if column.text else set()
    if meant and texts.isdisjoint(meant):
        yield (
            f"no value that is mapped for {column.name} ({', '.join([*meant][:5])}) is in the data;"
            ' what the data hold goes to the left: "in the data" = "in the study"'
        )
    for key, value in () if column.number else meant.items():
        is_other = key.casefold() != value.casefold()
        if value in texts and key in texts and is_other and meant.get(value, value) == value != "":
            yield (
                f"column {column.name}: {key!r} and {value!r} are both read as {value!r}, by the"
                " map for it; correct it, if they are two"
            )
