"""The study's columns as a hospital's table has them, by what its site file declares."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from erosion.client.dataset.column_values import (
    PLAIN_MARKS,
    Fault,
    NumberMarks,
    Parse,
    feature_parser,
    target_parser,
)
from erosion.client.dataset.decimal_mark import DecimalMark, found_decimal
from erosion.client.dataset.preparation import NOT_A_DATE, YEARS, time_between
from erosion.client.dataset.sources.data_source import TableSource
from erosion.client.dataset.text_table import TextColumn, TextTable
from erosion.common.settings.names import canonical
from erosion.common.tasks.features import NumberFeature, Range
from erosion.common.tasks.inputs import TabularTask
from erosion.common.tasks.task import CodedColumn

SPLIT = CodedColumn("split", {"train": 0.0, "test": 1.0}, "neither train nor test")


@dataclass(frozen=True, slots=True)
class StudyColumn:
    """One column of the study."""

    name: str
    text: TextColumn | None  # as the data have it; None where they have none
    plain: Parse  # of a text in the study's own words
    parse: Parse  # of a text in the data
    is_number: bool
    can_be_absent: bool  # nothing stands for an outcome, nor for who is a test patient
    typical: Range | None  # about the middle half of a number's values; None: it is not said
    unit: str  # of a number; "" where it is not said


def study_columns(
    table: TextTable,
    task: TabularTask,
    source: TableSource,
    *,
    with_target: bool = True,
    split_column: str | None = None,
) -> dict[str, StudyColumn]:
    """Every column of the study, by name: features first, then the target, then a split's."""
    marks = NumberMarks(decimal_mark(table, task, source), source.thousands or "")
    texts: dict[str, TextColumn | None] = {}
    parsers: dict[str, Parse] = {}

    def add(name: str, parser: Callable[[NumberMarks], Parse]) -> None:
        texts[name] = text = _text(table, source, name)
        written = replace(marks, limit=source.limits.get(name))
        parsers[name] = parser(PLAIN_MARKS if name in source.derive else written)
        if text is not None and text.typed:
            parsers[name] = _by_origin(text.typed, parser(PLAIN_MARKS), parsers[name])

    for feature in task.features:
        unit = source.units.get(feature.name)
        add(feature.name, partial(feature_parser, feature, unit=unit))
    for column in task.target_columns if with_target else ():
        unit = source.units.get(column.name)
        add(column.name, partial(target_parser, column, unit=unit))
    if split_column is not None:
        add(split_column, partial(target_parser, SPLIT))
    columns = (*task.features, *task.target_columns)
    numbers = {c.name: c for c in columns if isinstance(c, NumberFeature)}
    features = {feature.name for feature in task.features}
    return {
        name: StudyColumn(
            name,
            texts[name],
            parse,
            _mapped(parse, source, name),
            name in numbers,
            name in features,
            numbers[name].typical if name in numbers else None,
            numbers[name].unit if name in numbers else "",
        )
        for name, parse in parsers.items()
    }


def study_column_names(
    task: TabularTask, *, with_target: bool = True, split_column: str | None
) -> list[str]:
    """The study's own names: features first, then the target, then that of a given split."""
    features = [feature.name for feature in task.features]
    targets = [column.name for column in task.target_columns] if with_target else []
    return [*features, *targets, *([split_column] if split_column else [])]


def columns_of(
    task: TabularTask,
    source: TableSource,
    *,
    with_target: bool = True,
    split_column: str | None = None,
) -> list[str]:
    """The data's own names of the columns that are to be read."""
    names = study_column_names(task, with_target=with_target, split_column=split_column)
    needed = [local for name in names for local in source.needed(name)]
    return needed if source.patient is None else [*needed, source.patient]


def decimal_mark(table: TextTable, task: TabularTask, source: TableSource) -> DecimalMark:
    """The mark that the site file gives, or else the one that the study's numbers show."""
    if source.decimal is not None:
        return source.decimal
    if source.thousands in (".", ","):
        return "," if source.thousands == "." else "."
    numbers = [*task.features, *task.target_columns]
    names = [source.local_name(n.name) for n in numbers if isinstance(n, NumberFeature)]
    columns = (table.columns[name] for name in names if name in table.columns)
    return found_decimal(text for column in columns for text in column.written)


def _by_origin(typed: frozenset[str], plain: Parse, written: Parse) -> Parse:
    """The parser of a column in which these texts are numbers of the source's own."""
    return lambda text: plain(text) if text in typed else written(text)


def _text(table: TextTable, source: TableSource, name: str) -> TextColumn | None:
    if name in source.absent:
        return None
    if name in source.derive:
        return time_between(table, source.derive[name], source.value_map(name))
    return table.columns.get(source.local_name(name))


def _mapped(parse: Parse, source: TableSource, name: str) -> Parse:
    """The parser of the data's own words."""
    meant: Mapping[str, str] = source.value_map(name)
    if name in source.derive:
        wanted = source.derive[name]
        not_a_date = Fault(
            f"no date of the form {wanted.date_format} from {YEARS.start} to {YEARS.stop - 1}",
            'correct it, or set date_format under [data.derive.{key}]; mapped to "" under'
            " [data.values.{key}], it is missing",
        )
        return lambda text: not_a_date if text.startswith(NOT_A_DATE) else parse(text)
    return lambda text: parse(meant.get(canonical(text), text))
