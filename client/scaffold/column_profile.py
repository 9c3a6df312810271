"""The kind of a table's column, guessed from its values, for a person to confirm."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from erosion.client.dataset.column_values import MISSING_MARKERS
from erosion.client.dataset.decimal_mark import found_decimal
from erosion.client.dataset.sources.table_file import TableFile
from erosion.client.dataset.text_table import TextColumn, TextTable

Kind = Literal["number", "category", "identifier", "date", "text", "constant", "empty"]

MOST_CATEGORIES = 20
FEW_CODES = 6  # whole numbers of so few values are codes rather than measurements
MOST_NOT_NUMBERS = 0.1  # of the values of a column of numbers: typing errors and remarks
NUMBER = re.compile(r"[+-]?\d+([.,]\d+)?")  # with either decimal mark
DATES = ("%Y-%m-%d", "%d.%m.%Y", "%d/%m/%Y", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S")
IDENTIFIER = re.compile(
    r"(^|[\W_])(id|pid|mrn|nr|no|number|patient|case|fall|record)($|[\W_])", re.I
)


@dataclass(frozen=True, slots=True)
class Profile:
    """One column as it seems to be."""

    name: str
    kind: Kind
    counts: Mapping[str, int]  # distinct text -> rows, missing ones left out, commonest first
    num_rows: int
    num_missing: int
    numbers: NDArray[np.float64]  # (rows,) of a number; empty for other kinds
    not_numbers: tuple[str, ...] = ()  # texts in a column of numbers


def read_whole(path: Path) -> tuple[TextTable, list[Profile]]:
    """Every column of a table file; raises DataError."""
    source = TableFile(path=path)
    header = source.read(()).header
    table = source.read(header)
    known = [t for name in header for t in table.columns[name].texts]
    decimal = found_decimal(text for text in known if NUMBER.fullmatch(text))
    return table, [profile(name, table.columns[name], decimal) for name in header]


def profile(name: str, column: TextColumn, decimal: str = ".") -> Profile:
    """The column's kind, by its values and, for identifiers, its name."""
    times = np.bincount(column.codes, minlength=len(column.texts)).tolist()
    present = {
        text: count
        for text, count in zip(column.texts, times, strict=True)
        if text.lower() not in MISSING_MARKERS
    }
    counts = dict(sorted(present.items(), key=lambda item: -item[1]))
    num_rows, num_present = len(column.codes), sum(counts.values())
    parsed = {text: _number(text, decimal) for text in counts}
    odd = tuple(text for text, number in parsed.items() if math.isnan(number))
    numeric = sum(counts[text] for text in odd) <= MOST_NOT_NUMBERS * num_present
    values = [parsed[text] for text in counts if text not in odd]
    kind = _kind(name, counts, values if numeric else None, num_present)
    numbers = np.array(
        [parsed[text] for text in counts if text not in odd for _ in range(counts[text])]
        if kind == "number"
        else []
    )
    missing = num_rows - num_present
    return Profile(name, kind, counts, num_rows, missing, numbers, odd if kind == "number" else ())


def _kind(
    name: str, counts: Mapping[str, int], numbers: list[float] | None, num_present: int
) -> Kind:
    """`numbers`: the distinct ones, None where the texts are not numbers."""
    if not counts:
        return "empty"
    if len(counts) == 1:
        return "constant"
    whole = numbers is not None and all(value.is_integer() for value in numbers)
    distinct = len(counts) == num_present
    if distinct and num_present > MOST_CATEGORIES and (numbers is None or (whole and _is_id(name))):
        return "date" if all(map(_is_date, counts)) else "identifier"
    if numbers is not None:
        return (
            "category" if len(numbers) == 2 or (whole and len(numbers) <= FEW_CODES) else "number"
        )
    if all(map(_is_date, counts)):
        return "date"
    if _is_id(name) and len(counts) > MOST_CATEGORIES:
        return "identifier"
    return "category" if len(counts) <= MOST_CATEGORIES else "text"


def _is_id(name: str) -> bool:
    return IDENTIFIER.search(name) is not None


def _number(text: str, decimal: str) -> float:
    try:
        value = float(text.replace(decimal, ".")) if "_" not in text else math.nan
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan


def _is_date(text: str) -> bool:
    for form in DATES:
        try:
            datetime.strptime(text, form)
        except ValueError:
            continue
        return True
    return False
