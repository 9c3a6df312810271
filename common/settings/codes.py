"""Category and class values, compared as codes rather than as spellings."""

import re
from typing import Annotated

from pydantic import BeforeValidator, Field


def canonical(value: object) -> str:
    """How a category or class value is compared: `1`, `1.0` and ` 1 ` are the same."""
    text = str(value).strip()
    if re.fullmatch(r"[+-]?[0-9]+", text):  # long codes (SNOMED CT) are more than a float holds
        # As text, since Python makes no number of more than 4300 digits.
        digits = text.lstrip("+-").lstrip("0") or "0"
        return f"-{digits}" if text.startswith("-") and digits != "0" else digits
    try:
        number = float(text)
    except ValueError:
        return text
    return str(int(number)) if number.is_integer() else repr(number)


Code = Annotated[
    str,
    Field(max_length=200),
    BeforeValidator(canonical, json_schema_input_type=str | int | float | bool),
]
