"""The site file's declared changes to a table, before it is held against the study's contract.

A fixed list: columns are renamed, values recoded, numbers brought to the study's unit, ages and
lengths of stay made of dates. Nothing of a site file is ever run as a program.
"""

import re
from collections.abc import Collection, Mapping
from datetime import date, datetime
from typing import Annotated, Literal

import numpy as np
from pydantic import AfterValidator, BeforeValidator, Field

from erosion.client.dataset.missing_words import MISSING_MARKERS
from erosion.client.dataset.text_table import TextColumn, TextTable
from erosion.common.settings.base import Settings
from erosion.common.settings.names import canonical

DAYS_A_YEAR = 365.25
ISO = "%Y-%m-%d"
TIME = re.compile(  # behind a date, as 14:30, 2:30 PM, T14:30:00.000Z or T14:30+01:00
    r"(?<=\d)[T ]\s*\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?\s*([AP]M|Z|[+-]\d{2}(:?\d{2})?)?$", re.I
)
YEARS = range(1850, 2900)  # of a patient's dates; 9999-12-31 and 0001-01-01 stand for none

Canonical = Annotated[str, BeforeValidator(canonical)]
ValueMap = dict[Canonical, Canonical]  # value in the data -> value in the study; "": missing


class Recoding(Settings):
    """One map for several columns of the study."""

    columns: tuple[str, ...] = Field(
        min_length=1, description="Columns of the study that the map holds for."
    )
    values: ValueMap = Field(
        min_length=1,
        description='Value in the data = value in the study. `""` makes a value missing.',
    )


class UnitChange(Settings):
    """From the data's unit to the study's: value x factor + offset."""

    factor: float = Field(default=1.0, description="What the data's value is multiplied by.")
    offset: float = Field(default=0.0, description="What is then added, in the study's unit.")


def _from_factor(value: object) -> object:
    """`38.67` is short for `{factor = 38.67}`."""
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


def _quoted_date(value: object) -> object:
    """A date in quotation marks is one, too: TOML writes it without."""
    try:
        return date.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _one_form(value: str) -> str:
    """A form that reads the date it writes: not two of them, such as a draft names."""
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

    Of years with two digits, the start of `years_between` is the last one before its end.
    """

    kind: Literal["years_between", "days_between"] = Field(
        description='`"years_between"` for ages, `"days_between"` for lengths of stay.'
    )
    start: str = Field(
        min_length=1, description="Column in the data with the first date, such as that of birth."
    )
    end: Annotated[
        str | date,
        BeforeValidator(_quoted_date, json_schema_input_type=str | date),
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


NOT_A_DATE = "no date: "  # opens the text of a derived value that has none


def time_between(
    table: TextTable, wanted: TimeBetween, meant: Mapping[str, str] | None
) -> TextColumn | None:
    """The derived column as text, "" where a date is missing; None where a column is absent.

    Texts that `meant` maps to "" are missing dates. A text that is no date, or one outside of
    YEARS, stays, behind NOT_A_DATE, so that it can be quoted.
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
    pairs, codes = np.unique(start.codes * len(ends) + end.codes, return_inverse=True)
    texts = [
        _between(starts[pair // len(ends)], ends[pair % len(ends)], wanted)
        for pair in pairs.tolist()
    ]
    distinct = list(dict.fromkeys(texts))
    position = {text: index for index, text in enumerate(distinct)}
    merged = np.array([position[text] for text in texts], dtype=np.int64)
    return TextColumn(tuple(distinct), merged[codes])


def _as_date(text: str, date_format: str, unknown: Collection[str]) -> date | str:
    """The date, or the text as it is; "" is missing."""
    if canonical(text) in unknown:
        return ""
    if text.lower() in MISSING_MARKERS:
        return ""
    iso = text[:10] if text[10:11] in ("T", " ") else text  # whatever a database writes behind it
    for written, known in ((text, date_format), (TIME.sub("", text), date_format), (iso, ISO)):
        try:
            found = datetime.strptime(written, known).date()
        except ValueError:
            continue
        return found if found.year in YEARS else text
    return text


def _between(start: date | str, end: date | str, wanted: TimeBetween) -> str:
    if start == "" or end == "":
        return ""
    if not isinstance(start, date):
        return NOT_A_DATE + start
    if not isinstance(end, date):
        return NOT_A_DATE + end
    if wanted.kind == "years_between" and "%y" in wanted.date_format and start > end:
        # strptime takes the 45 of a date of birth for 2045.
        day = 28 if (start.month, start.day) == (2, 29) else start.day
        start = start.replace(year=start.year - 100, day=day)
    days = (end - start).days
    return f"{days / DAYS_A_YEAR:.4f}" if wanted.kind == "years_between" else str(days)
