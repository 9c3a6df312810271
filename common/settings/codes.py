"""Category and class values, compared as codes rather than as spellings."""

import re
from decimal import Decimal
from math import isfinite
from typing import Annotated

from pydantic import BeforeValidator

_PLAIN = re.compile(r"(-?)(0|[1-9][0-9]*|(?=\.[0-9]))(?:\.([0-9]*))?")


def canonical(value: object) -> str:
    """How a category or class value is compared: `1`, `1.0` and ` 1 ` are the same.

    As text, so that long codes (SNOMED CT) stay apart. Plain decimals alone are numbers: 1E1, 01,
    1_0, +1 and Infinity are codes of their own.
    """
    text = str(value).strip()
    if isinstance(value, float) and isfinite(value):
        text = format(Decimal(text), "f")  # 1e+16
    found = _PLAIN.fullmatch(text)
    if found is None:
        return text
    sign, whole, fraction = found[1], found[2] or "0", (found[3] or "").rstrip("0")
    number = f"{whole}.{fraction}" if fraction else whole
    return number if number == "0" else sign + number


Code = Annotated[str, BeforeValidator(canonical, json_schema_input_type=str | int | float | bool)]
