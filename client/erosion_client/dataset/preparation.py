"""The site file's declared changes to a table, made before it is checked by the study's contract.

A fixed list: columns are renamed, values recoded, units converted, and ages and lengths of stay
derived from dates. No site file is ever executed.
"""

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import date, datetime
from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from erosion_client.dataset.column_values import (
    MISSING_MARKERS,
    DecimalMark,
    NumberMarks,
    UnitChange,
    found_decimal,
)
from erosion_client.dataset.text_table import TextColumn, TextTable
from erosion_common.errors import DataError
from erosion_common.settings.base import Settings
from erosion_common.settings.names import canonical
from erosion_common.support.text import some

DAYS_A_YEAR = 365.25
ISO = "%Y-%m-%d"
TIME = re.compile(  # after a date, as 14:30, 2:30 PM, T14:30:00.000Z or T14:30+01:00
    r"(?<=\d)[T ]\s*\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?\s*([AP]M|Z|[+-]\d{2}(:?\d{2})?)?$", re.I
)
YEARS = range(1850, 2900)  # of a patient's dates; 9999-12-31 and 0001-01-01 mean none

Canonical = Annotated[str, BeforeValidator(canonical)]
ValueMap = dict[Canonical, Canonical]  # value in the data -> value in the study; "": missing


def _from_factor(value: object) -> object:
    """Read `38.67` as `{factor = 38.67}`."""
    return {"factor": value} if isinstance(value, int | float) else value


def _not_zero(value: UnitChange) -> UnitChange:
    if value.factor == 0:
        raise ValueError("a factor of 0 would make every value the same")
    return value


Unit = Annotated[
    UnitChange,
    BeforeValidator(_from_factor, json_schema_input_type=float | UnitChange),
    AfterValidator(_not_zero),
]


def _one_form(value: str) -> str:
    """Return a format that reads the date it writes: not two of them, as in a draft."""
    day = datetime(2000, 12, 31)
    try:
        is_one = datetime.strptime(day.strftime(value), value).date() == day.date()
    except (ValueError, re.error):
        is_one = False
    if not is_one:
        raise ValueError('give one form of a date, such as "%d.%m.%Y"')
    return value


class TimeBetween(Settings):
    """A number of the study that is the time between two dates.

    The start of `years_between` with a two-digit year is the last one before its end.
    """

    kind: Literal["years_between", "days_between"] = Field(
        description='`"years_between"` for ages, `"days_between"` for lengths of stay.'
    )
    start: str = Field(
        min_length=1, description="Column in the data with the first date, such as that of birth."
    )
    end: Annotated[
        str | date,
        Field(
            description="Column in the data with the second date, or one date for everybody, such "
            "as 2024-12-31."
        ),
    ]
    date_format: Annotated[str, AfterValidator(_one_form)] = Field(
        default=ISO,
        description='How dates are written, as Python\'s strptime has it, such as `"%d.%m.%Y"`. '
        "ISO dates are always understood, and a time of day behind a date is left out.",
    )

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns in the data that are needed."""
        return (self.start,) if isinstance(self.end, date) else (self.start, self.end)


NOT_A_DATE = "no date: "  # prefix of a derived value's text where it is not a date


def time_between(
    table: TextTable, wanted: TimeBetween, meant: Mapping[str, str] | None
) -> TextColumn | None:
    """Return the derived column as text, "" where a date is missing; None where a column is absent.

    Texts that `meant` maps to "" are missing dates. A text that is not a date, or outside YEARS,
    stays, after NOT_A_DATE, so that it can be quoted.
    """
    unknown = {text for text, meaning in (meant or {}).items() if meaning == ""}
    if any(name not in table.columns for name in wanted.columns):
        return None
    start = table.columns[wanted.start]
    if isinstance(wanted.end, date):
        end = TextColumn((wanted.end.isoformat(),), np.zeros_like(start.codes))
        ends: list[date | str] = [wanted.end]
    else:
        end = table.columns[wanted.end]
        ends = [_as_date(text, wanted.date_format, unknown) for text in end.texts]
    starts = [_as_date(text, wanted.date_format, unknown) for text in start.texts]
    has_century = ["%y" not in wanted.date_format or _is_iso(text) for text in start.texts]
    pairs, codes = np.unique(start.codes * len(ends) + end.codes, return_inverse=True)
    texts = [
        _between(starts[first], ends[second], wanted, has_century=has_century[first])
        for first, second in (divmod(pair, len(ends)) for pair in pairs.tolist())
    ]
    distinct = list(dict.fromkeys(texts))
    position = {text: index for index, text in enumerate(distinct)}
    merged = np.array([position[text] for text in texts], dtype=np.int64)
    return TextColumn(tuple(distinct), merged[codes])


def _as_date(text: str, date_format: str, unknown: Collection[str]) -> date | str:
    """Return the date, or the text unchanged; "" is missing."""
    if canonical(text) in unknown or text.lower() in MISSING_MARKERS:
        return ""
    iso = text[:10] if text[10:11] in ("T", " ") else text  # without the database's time of day
    for written, known in ((text, date_format), (TIME.sub("", text), date_format), (iso, ISO)):
        try:
            found = datetime.strptime(written, known)
        except ValueError:
            continue
        if written.isdecimal() and len(written) != len(found.strftime(known)):
            return text  # 1121950 of 01121950 would be in February
        return found.date() if found.year in YEARS else text
    return text


def _is_iso(text: str) -> bool:
    return isinstance(_as_date(text, ISO, ()), date)


def _between(start: date | str, end: date | str, wanted: TimeBetween, *, has_century: bool) -> str:
    if start == "" or end == "":
        return ""
    if not isinstance(start, date):
        return NOT_A_DATE + start
    if not isinstance(end, date):
        return NOT_A_DATE + end
    if wanted.kind == "years_between" and not has_century and start > end:
        # strptime reads the 45 in a date of birth as 2045.
        day = 28 if (start.month, start.day) == (2, 29) else start.day
        start = start.replace(year=start.year - 100, day=day)
    days = (end - start).days
    return f"{days / DAYS_A_YEAR:.4f}" if wanted.kind == "years_between" else str(days)


Rule = Literal["first", "last", "mean", "max", "min"]

MOST_LACKED = 0.75  # of the features: a row with fewer has nearly none
NEARLY_ALL = 0.9  # of the rows
MOSTLY = 0.5  # of the rows without an outcome that have a feature
REMEDY = (
    "if they stand on other rows of the same patient, join the rows: name patient under [data],"
    ' and write take = "first" (or "last", "mean", "max", "min", or an event) under [data.rows]'
)


class JoinedRows(Settings):
    """How a patient's rows become one.

    Rows are in the order of the table. Columns have their names in the data, and missing values are
    skipped.
    """

    take: Rule = Field(
        default="first",
        description='What the patient has of a column: of its values the `"first"` or the '
        '`"last"`, or of numbers the `"mean"`, the largest (`"max"`) or the smallest (`"min"`).',
    )
    columns: dict[str, Rule] = Field(
        default_factory=dict,
        description="Column in the data = another rule than `take`, such as the largest value "
        "where that is the worst.",
    )
    event_column: str | None = Field(
        default=None,
        min_length=1,
        description="Column in the data that names a row's event or visit, such as "
        '`"redcap_event_name"`.',
    )
    event: str | None = Field(
        default=None,
        min_length=1,
        description="Event from which alone columns are taken, so that nothing is read that came "
        "after the outcome. Left out: any row.",
    )
    events: dict[str, str] = Field(
        default_factory=dict,
        description="Column in the data = another event than `event`, such as that of the outcome.",
    )

    @model_validator(mode="after")
    def _events_have_a_column(self) -> Self:
        if (self.event or self.events) and self.event_column is None:
            raise ValueError("event and events need event_column, the column that names events")
        return self


def joined(
    table: TextTable,
    rows: JoinedRows,
    patient: str,
    *,
    decimal: DecimalMark | None,
    thousands: str,
    meant: Mapping[str, ValueMap],
    codes: Mapping[str, Collection[str]],
) -> TextTable:
    """Return the table with one row per patient, in the order of their first rows.

    `patient`: the column that identifies patients; where it is missing or empty, the rows stay
    unchanged, for the contract to refuse. `meant`: the site file's meaning of values of a column in
    the data; `codes`: the study's own values of it, of which none is missing. Raises DataError for
    an unknown event, and for text in a column that needs the mean, the largest or the smallest
    value.
    """
    key = table.columns.get(patient)
    if key is None:
        return table
    unnamed = np.isin(key.codes, [i for i, t in enumerate(key.texts) if _is_missing(t, {}, ())])
    alone = len(key.texts) + np.arange(table.num_rows)  # rows without a patient are not joined
    _, first_rows, groups = np.unique(
        np.where(unnamed, alone, key.codes), return_index=True, return_inverse=True
    )
    order = np.argsort(first_rows)
    patients = np.argsort(order)[groups]  # (n,) from 0, in the order of the first rows
    starts = first_rows[order]
    as_they_are = patient, rows.event_column
    rules: dict[str, Rule] = {
        name: "first" if name in as_they_are else rows.columns.get(name, rows.take)
        for name in table.columns
    }
    if decimal is None:
        compared = (table.columns[n] for n, rule in rules.items() if rule not in ("first", "last"))
        decimal = found_decimal(text for column in compared for text in column.written)
    marks = NumberMarks(decimal, thousands)
    columns = {}
    for name, column in table.columns.items():
        values, own = meant.get(name, {}), codes.get(name, ())
        known = np.array([not _is_missing(t, values, own) for t in column.texts])[column.codes]
        known &= _of_event(table, rows, name)
        if name in as_they_are:
            known = np.ones(table.num_rows, dtype=bool)
        rule, used, numbers = rules[name], np.flatnonzero(known), None
        if rule not in ("first", "last"):
            numbers = _numbers(table, name, column, used, marks, values)
        columns[name] = _taken(column, rule, used, patients, len(starts), numbers)
    hashes = np.zeros(len(starts), dtype=np.uint64)
    np.add.at(hashes, patients, table.row_hashes)
    last = table.num_rows - table.footer  # these rows have no patient
    return replace(
        table,
        columns=columns,
        numbers=table.numbers[starts],
        positions=np.arange(len(starts)),
        footer=table.footer if (starts[len(starts) - table.footer :] >= last).all() else 0,
        row_hashes=hashes,
        notes=(
            *table.notes,
            f"{table.num_rows} rows are joined into {len(starts)}, a patient each",
        ),
    )


def _taken(
    column: TextColumn,
    rule: Rule,
    used: NDArray[np.int64],
    patients: NDArray[np.int64],
    num_patients: int,
    numbers: NDArray[np.float64] | None,
) -> TextColumn:
    """Return the column with one value per patient, from the rows that are `used` (k,)."""
    of = patients[used]
    if rule == "mean":
        assert numbers is not None
        times = np.bincount(of, minlength=num_patients)
        sums = np.bincount(of, weights=numbers, minlength=num_patients)
        means = ["" if n == 0 else f"{s / n:.12g}" for s, n in zip(sums, times, strict=True)]
        texts, codes = np.unique(means, return_inverse=True)
        return TextColumn(tuple(map(str, texts)), codes, frozenset(map(str, texts)) - {""})
    if rule == "last":
        used, of = used[::-1], of[::-1]
    elif numbers is not None:
        by_size = np.argsort(-numbers if rule == "max" else numbers, kind="stable")
        used, of = used[by_size], of[by_size]
    owners, places = np.unique(of, return_index=True)  # the first position of each
    codes = np.full(num_patients, len(column.texts))
    codes[owners] = column.codes[used[places]]
    kept, merged = np.unique(codes, return_inverse=True)
    texts_or_none = (*column.texts, "")
    return TextColumn(tuple(texts_or_none[code] for code in kept.tolist()), merged, column.typed)


def _of_event(table: TextTable, rows: JoinedRows, name: str) -> NDArray[np.bool_]:
    """Return which rows (n,) a column may be taken from."""
    event = rows.events.get(name, rows.event)
    if event is None or rows.event_column is None:
        return np.ones(table.num_rows, dtype=bool)
    found = table.columns.get(rows.event_column)
    if found is None or event not in found.texts:
        has = "which is no column"
        if found is not None:
            has = f"which has {some(repr(text) for text in found.texts if text)}"
        raise DataError(
            f"there is no event {event!r} in {rows.event_column!r}, {has}",
            where=table.origin,
            remedy="Correct [data.rows].",
        )
    return np.asarray(found.codes == found.texts.index(event))


def _numbers(
    table: TextTable,
    name: str,
    column: TextColumn,
    used: NDArray[np.int64],
    marks: NumberMarks,
    meant: ValueMap,
) -> NDArray[np.float64]:
    """Return the numbers in the used rows: (k,). Raises DataError where one is not a number."""
    values = np.full(len(column.texts), math.nan)
    for code in np.unique(column.codes[used]).tolist():
        text = column.texts[code]
        is_typed = text in column.typed
        plain = _plain(meant.get(canonical(text), text), NumberMarks() if is_typed else marks)
        if math.isnan(plain):
            row = int(used[column.codes[used] == code][0])
            raise DataError(
                f"column {name} has {text[:40]!r} on {table.place(row)}, of which"
                " [data.rows] can make no mean, largest or smallest value",
                where=table.origin,
                remedy='Take the first or the last one, or map it to a number, or to "", under'
                " [data.values].",
            )
        values[code] = plain
    return values[column.codes[used]]


def _plain(text: str, marks: NumberMarks) -> float:
    if marks.decimal == "," and "." in text and marks.thousands != ".":
        return math.nan  # 1.234 could be either number
    return marks.finite(text)


def _is_missing(text: str, meant: ValueMap, codes: Collection[str]) -> bool:
    text = meant.get(canonical(text), text)
    return text.lower() in MISSING_MARKERS and canonical(text) not in codes


def nearly_bare(is_missing: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which rows (n,) lack nearly all features; `is_missing`: (n, features)."""
    return np.asarray(is_missing.sum(axis=1) >= max(MOST_LACKED * is_missing.shape[1], 1))


def stand_apart(is_missing: NDArray[np.bool_]) -> int:
    """Return how many rows lack nearly all features, if nearly all rows have them; else 0."""
    bare = int(nearly_bare(is_missing).sum())
    return bare if bare >= NEARLY_ALL * len(is_missing) else 0


def on_other_rows(
    names: Collection[str], is_missing: NDArray[np.bool_], kept: NDArray[np.bool_]
) -> list[str]:
    """Return the features (n, features) missing in nearly every kept row but not in most others."""
    if kept.all() or not kept.any():
        return []
    here, there = is_missing[kept].mean(axis=0), is_missing[~kept].mean(axis=0)
    return [
        name
        for name, lacked, lacked_there in zip(names, here, there, strict=True)
        if lacked >= NEARLY_ALL and lacked_there <= 1 - MOSTLY
    ]
