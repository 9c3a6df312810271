"""How people write values: 30.5 or 30,5, and words for missing values."""

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

DecimalMark = Literal[".", ","]

_WORDS = tomllib.loads(Path(__file__).with_name("missing_words.toml").read_text(encoding="utf-8"))
MISSING_MARKERS = frozenset(_WORDS["markers"])  # in lower case
MISSING_WORDS = frozenset(_WORDS["words"])  # the same; only ever proposed
BELOW_A_LIMIT = frozenset(_WORDS["below"])  # the same
DASHES = frozenset(["-", "--", "---", "–", "—"])

_NUMBER = re.compile(r"[<>≤≥=~\s]*([+-]?\d[\d.,]*(?:[eE][+-]?\d+)?|[+-]?\.\d+)")
_COMMA = re.compile(r"[+-]?\d+,\d+(?:[eE][+-]?\d+)?")
_BY_POINT = re.compile(r"[+-]?[1-9]\d{0,2}(?:\.\d{3})+")
_HUNDREDS = re.compile(r"[+-]?[1-9]\d{2}")
_GROUPED = re.compile(r"[+-]?[1-9]\d{0,2}(?:,\d{3})+")  # 1,234 may be a thousand or 1.234


def found_decimal(texts: Iterable[str]) -> DecimalMark:
    """Return the decimal mark of the distinct texts of a table's number columns.

    It is a comma where some have a comma and none a point; where every comma could also group
    thousands, nothing is assumed, and the point stays.
    """
    commas = False
    for text in texts:
        # From "<0,05" and "1,33 (haem.)" the number.
        found = _NUMBER.match(text)
        number = found[1] if found else ""
        if "." in number:
            return "."
        commas = commas or (
            _COMMA.fullmatch(number) is not None and _GROUPED.fullmatch(number) is None
        )
    return "," if commas else "."


def points_may_group(texts: Iterable[str]) -> bool:
    """Return whether there are points, and each could group thousands: 1.250 or 12.500.000."""
    pointed = [text for text in texts if "." in text]
    return bool(pointed) and all(map(_BY_POINT.fullmatch, pointed))


def groups_by_point(texts: Iterable[str]) -> bool:
    """Return whether a column's points group thousands: it holds 980 and 1.250.

    With three decimals throughout it would hold 980.000, and without trailing zeros 1.25.
    """
    numbers = [text for text in texts if text[-1:].isdecimal()]
    pointed = [text for text in numbers if "." in text]
    return (
        any(text.endswith("0") for text in pointed)
        and all(_BY_POINT.fullmatch(text) for text in pointed)
        and any(_HUNDREDS.fullmatch(text) for text in numbers)
        and all(len(text.lstrip("+-")) <= 3 for text in numbers if "." not in text)
    )
