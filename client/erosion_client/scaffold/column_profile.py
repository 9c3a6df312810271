"""The kind of a table's column, guessed from its values, for a person to confirm."""

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from erosion_client.dataset.column_values import (
    BOTH_MARKS,
    LIMIT,
    MISSING_MARKERS,
    MISSING_WORDS,
    PLAIN_MARKS,
    NumberMarks,
    found_decimal,
    groups_by_point,
    points_may_group,
)
from erosion_client.dataset.preparation import TIME
from erosion_client.dataset.single_column import seem_counted_dates, standing_apart
from erosion_client.dataset.sources.table_file import TableFile
from erosion_client.dataset.text_table import TextColumn, TextTable
from erosion_client.scaffold.vocabulary import (
    MixedUnits,
    is_coded,
    is_date,
    is_id,
    is_key,
    is_patient_key,
    is_person,
    is_place,
    mixed_units,
)

Kind = Literal["number", "category", "identifier", "date", "text", "constant", "empty"]

MOST_CATEGORIES = 20
YES_AND_NO = 2  # values, which identify nobody
MOST_ROWS = 50  # rows of a patient on average, unless the column's name is that of a patient key
FEW_CODES = 6  # distinct whole numbers that are codes rather than measurements
LEAST_ROWS = 2  # rows of a category on average: remarks are of one patient each
MOST_NOT_NUMBERS = 0.1  # of a number column's values: typing errors and remarks
MOST_MEASURED = 0.5  # of the values: including these, such as numbers with a unit or a limit
MEASURED = re.compile(
    r"[<>≤≥~]?\s*\d+([.,]\d+)?\s*([^\W\d_]|[%/°]|-?$)"
)  # "84 mg/dl", "<0.5", "1,2-"
MOSTLY_GROUPED = 0.7  # of a column's texts
NUMBER = re.compile(r"[+-]?\d+([.,]\d+)?")  # with either decimal mark
CODE = re.compile(r"0\d+|\d+[eE]\d+|\d+_\d+")  # that floating point would also read
DIAGNOSIS = re.compile(r"[A-Z]\d{2,3}[A-Z]?(\.?\d{1,2})?")  # V57, E885.9 among numbers: ICD-9
FEWEST_DIAGNOSES = 2  # different ones
DATES = (
    *(
        "%Y-%m-%d",
        "%d.%m.%Y",
        "%d/%m/%Y",
        "%m/%d/%Y",
        "%d-%m-%Y",
        "%m-%d-%Y",
        "%Y/%m/%d",
        "%Y.%m.%d",
    ),
    *("%d.%m.%y", "%d/%m/%y", "%m/%d/%y", "%d-%m-%y", "%m-%d-%y", "%y-%m-%d", "%y/%m/%d"),
    *("%d %b %Y", "%d-%b-%Y", "%d%b%Y", "%d-%b-%y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y"),
    *("%Y%m%d", "%d%m%Y", "%m%d%Y", "%Y年%m月%d日"),
)
MOSTLY_DATES = 0.9  # of a column's texts, in any format
HEX = re.compile(r"[0-9a-f]{8,}(-[0-9a-f]{4,})*", re.I)  # the form of pseudonyms, also with hyphens
FIRST_YEAR = 1850  # of a date; 31.12.0020 is a slip


@dataclass(frozen=True, slots=True)
class Profile:
    """One column's apparent properties. Words for "not known" count as missing."""

    name: str
    kind: Kind
    counts: Mapping[str, int]  # distinct text -> rows, without missing ones, commonest first
    num_rows: int
    num_missing: int
    numbers: NDArray[np.float64]  # (rows,) of a number; empty for other kinds
    not_numbers: tuple[str, ...] = ()  # texts in a number column
    limits: tuple[str, ...] = ()  # values beyond a limit in a number column, such as "<0.5"
    date_formats: tuple[str, ...] = ()  # that all values of a date column fit
    thousands: str = ""  # mark between groups of three digits in a number column
    unsaid: tuple[str, ...] = ()  # texts that mean "not known": words, and
    # of a number also codes such as 999 that are far from the other values
    values: Mapping[str, float] = field(default_factory=dict)  # texts that are numbers
    decimal: str = "."  # mark of a number column, where any has one
    mixed: MixedUnits | None = None  # two units in a number column; `numbers` are in the one
    # of most rows


def read_whole(path: Path, **written: Any) -> tuple[TextTable, list[Profile]]:
    """Profile every column of a table file. Raises DataError. `written`: format keys of [data]."""
    source = TableFile(path=path, **written)
    header = source.read(()).header
    table = source.read(header)
    table = table.without_last(table.footer)
    known = [t for name in header for t in table.columns[name].written]
    decimal = found_decimal(filter(_is_number, known))
    # A code such as 250.01 in one column does not make text of 1,5 in another, and 7.345 is seven
    # thousand in the same table.
    of_columns = {
        name: found_decimal(filter(_is_number, column.written))
        for name, column in table.columns.items()
    }
    has_comma = "," in of_columns.values()
    marks = {
        name: ","
        if of_columns[name] == "," or (has_comma and points_may_group(column.written))
        else decimal
        for name, column in table.columns.items()
    }
    return table, [profile_of(name, table.columns[name], marks[name]) for name in header]


def profile_of(name: str, column: TextColumn, decimal: str = ".") -> Profile:
    """Return the column's profile, by its values and, for identifiers, its name."""
    times = np.bincount(column.codes, minlength=len(column.texts)).tolist()
    counts = {
        text: count
        for text, count in sorted(
            zip(column.texts, times, strict=True), key=lambda item: -int(item[1])
        )
        if text.lower() not in MISSING_MARKERS
    }
    thousands = _thousands([text for text in counts if text not in column.typed], decimal)
    marks = NumberMarks(decimal, thousands)
    parsed = {
        text: (PLAIN_MARKS if text in column.typed else marks).finite(text) for text in counts
    }
    no_numbers = [text for text, number in parsed.items() if math.isnan(number)]
    unsaid = tuple(text for text in no_numbers if text.lower() in MISSING_WORDS)
    odd = tuple(text for text in no_numbers if text not in unsaid)
    said = {text: count for text, count in counts.items() if text not in unsaid}
    half = NumberMarks(decimal, thousands, "half")
    limits = {t: v for t in odd if LIMIT.fullmatch(t) and not math.isnan(v := half.finite(t))}
    strange = [t for t in odd if t not in limits and not MEASURED.match(t)]
    numeric = (
        sum(said[t] for t in strange) <= MOST_NOT_NUMBERS * sum(said.values())
        and sum(said[t] for t in odd if t not in limits) <= MOST_MEASURED * sum(said.values())
        and len(said) > len(odd)
    )
    if strange and all(map(DIAGNOSIS.fullmatch, strange)) and len(strange) >= FEWEST_DIAGNOSES:
        numeric = False
    coded = sum(count for text, count in said.items() if CODE.fullmatch(text))
    is_measured = any(mark in text for text in said for mark in ".,") or column.typed
    if coded > MOST_NOT_NUMBERS * sum(said.values()) and not is_measured:
        numeric = False  # 01 and 1, or 1E1 and 10, are one number and two codes
        no_numbers = [*said]
    values = [parsed[text] for text in said if text not in odd]
    kind = _kind(name, said, values if numeric else None, sum(said.values()))
    is_number = numeric and kind == "number"
    mixed, main = None, {text: parsed[text] for text in said if text not in odd}
    if is_number:
        rows = np.array([said[text] for text in main])
        mixed = mixed_units(name, np.array([*main.values()]), rows)
        if mixed is not None and mixed.is_named:
            main = {t: v for t, v in main.items() if (v < mixed.cut) == mixed.main_is_below}
        apart = standing_apart(main, said)
        main = {text: value for text, value in main.items() if text not in apart}
        measured = {text: count for text, count in said.items() if text not in apart}
        distinct = [parsed[text] for text in measured if text not in odd]
        left = _kind(name, measured, distinct, sum(measured.values()))
        if left == "number" or (left == "category" and not odd):
            kind, said, unsaid = left, measured, (*unsaid, *apart)
            is_number = kind == "number"
    else:  # among other words, "unknown" may be a category
        said, unsaid = counts, ()
        kind = _kind(name, counts, values if not no_numbers else None, sum(counts.values()))
    return Profile(
        name,
        kind,
        said,
        len(column.codes),
        len(column.codes) - sum(said.values()),
        np.concatenate([_rows(main, said), _rows(limits, said)]) if is_number else np.zeros(0),
        tuple(text for text in odd if text not in limits) if is_number else (),
        date_formats=_date_formats(said) if kind in ("date", "constant") else (),
        thousands=thousands if is_number else "",
        unsaid=unsaid,
        values={t: parsed[t] for t in said if t not in no_numbers} if numeric else {},
        decimal=decimal,
        mixed=mixed if is_number else None,
        limits=tuple(limits) if is_number else (),
    )


def _is_number(text: str) -> bool:
    """Return whether it is a number with either decimal mark, or with both: 1.234,5."""
    return NUMBER.fullmatch(text) is not None or BOTH_MARKS.fullmatch(text) is not None


def _rows(values: Mapping[str, float], counts: Mapping[str, int]) -> NDArray[np.float64]:
    """Return the value of every row that has one."""
    return np.repeat([*values.values()], [counts[text] for text in values])


def _kind(
    name: str, counts: Mapping[str, int], numbers: list[float] | None, num_present: int
) -> Kind:
    """Return the kind; `numbers`: the distinct ones, None where the texts are not numbers."""
    if not counts:
        return "empty"
    if len(counts) == 1:
        return "constant"
    if is_patient_key(name) and len(counts) > YES_AND_NO:
        return "identifier"
    if is_person(name) and numbers is None and len(counts) > YES_AND_NO:
        return "text"
    if numbers is None or all(re.fullmatch(r"\d{8}", text) for text in counts):
        is_dates = bool(_date_formats(counts)) or _are_in_several_forms(counts)
    else:
        is_dates = not is_key(name) and seem_counted_dates(
            np.array(numbers), is_called_date=is_date(name)
        )
    if is_dates:
        return "date"
    whole = numbers is not None and all(value.is_integer() for value in numbers)
    distinct = len(counts) == num_present
    if distinct and num_present > MOST_CATEGORIES and numbers is not None and whole:
        first, last = min(numbers), max(numbers)
        counts_rows = first in (0, 1) and last - first == num_present - 1  # 1, 2, 3, ...
        if counts_rows or is_id(name):
            return "identifier"
    if distinct and num_present > MOST_CATEGORIES and numbers is None:
        return "identifier"
    if is_key(name) and whole and len(counts) > MOST_CATEGORIES:
        # For patients with several rows; a code such as "discharge_disposition_id" covers hundreds.
        return "identifier" if num_present <= MOST_ROWS * len(counts) else "text"
    if numbers is not None:
        if is_coded(name) and len(numbers) > MOST_CATEGORIES:
            return "text"
        most = MOST_CATEGORIES if is_key(name) or is_coded(name) else FEW_CODES
        return "category" if len(numbers) == 2 or (whole and len(numbers) <= most) else "number"
    is_hash = all(map(HEX.fullmatch, counts))
    if len(counts) > MOST_CATEGORIES:
        return "identifier" if is_id(name) or is_hash else "text"
    is_remark = num_present < LEAST_ROWS * len(counts)
    numbers_few = is_hash or (is_key(name) and not is_place(name))  # patients with several rows
    return "text" if len(counts) > YES_AND_NO and (is_remark or numbers_few) else "category"


def _thousands(texts: Collection[str], decimal: str) -> str:
    """Return the mark that groups the digits of most texts, such as "," in 198,000; or ""."""
    for mark in (",", ".", "'", " "):
        grouped = rf"[+-]?[1-9]\d{{0,2}}({re.escape(mark)}\d{{3}})+({re.escape(decimal)}\d+)?"
        num = sum(re.fullmatch(grouped, text) is not None for text in texts)
        if mark != decimal and num > MOSTLY_GROUPED * len(texts):
            return mark
    seem_to_group = groups_by_point if decimal == "." else points_may_group
    return "." if seem_to_group(texts) else ""


def _date_formats(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the formats of DATES in which all texts are written, ignoring times of day."""
    left = list(DATES)
    for text in texts:
        day = TIME.sub("", text)
        left = [form for form in left if _is_date(day, form)]
        if not left:
            break
    return tuple(left)


def _are_in_several_forms(texts: Collection[str]) -> bool:
    """Return whether nearly all of the texts are dates, though no format fits all."""
    most = max(1, round((1 - MOSTLY_DATES) * len(texts)))  # that are not dates
    others = 0
    for text in texts:
        day = TIME.sub("", text)
        others += not any(_is_date(day, form) for form in DATES)
        if others > most:
            return False
    return len(texts) > YES_AND_NO


def _is_date(text: str, form: str) -> bool:
    try:
        return datetime.strptime(text, form).year > FIRST_YEAR
    except ValueError:
        return False
