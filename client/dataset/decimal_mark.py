"""Finding out whether a table writes 30.5 or 30,5."""

import re
from collections.abc import Iterable
from typing import Literal

DecimalMark = Literal[".", ","]

_COMMA = re.compile(r"[+-]?\d+,\d+(?:[eE][+-]?\d+)?")
_GROUPED = re.compile(r"[+-]?[1-9]\d{0,2}(?:,\d{3})+")  # 1,234 may be a thousand or 1.234


def found_decimal(texts: Iterable[str]) -> DecimalMark:
    """The decimal mark of the distinct texts of a table's number columns.

    A comma, where some have a comma and none a point; where every comma could as well group
    thousands, nothing is assumed, and the point stays.
    """
    commas = False
    for text in texts:
        if "." in text and any(letter.isdigit() for letter in text):
            return "."
        commas = commas or (_COMMA.fullmatch(text) is not None and _GROUPED.fullmatch(text) is None)
    return "," if commas else "."
