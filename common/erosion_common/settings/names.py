"""Names and other short texts of studies and messages, each with its longest length."""

import re
import unicodedata
from decimal import Decimal
from math import isfinite
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag

from erosion_common.support.text import printable


def is_name(value: str) -> bool:
    """Return True if a hospital, a study or an arm may have this name."""
    return re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,47}", value) is not None


def checked_name(value: str) -> str:
    """Return the name itself; raises ValueError with what is allowed."""
    if not is_name(value):
        raise ValueError(
            "use up to 48 small letters, digits, - and _, starting with a letter or digit"
        )
    return value


Name = Annotated[str, AfterValidator(checked_name)]

# Names of several hospitals, of none and of the other side; and those that Windows opens as a
# device in place of a file, where records and kits are files by a hospital's name.
_RESERVED = frozenset({"all", "none", "coordinator", "con", "prn", "aux", "nul"}) | {
    f"{device}{number}" for device in ("com", "lpt") for number in range(10)
}


def checked_hospital(value: str) -> str:
    """Return a hospital's name itself; raises ValueError with what is allowed."""
    if checked_name(value) in _RESERVED:
        raise ValueError(f"{value!r} means something else here; give the hospital another name")
    return value


HospitalName = Annotated[str, AfterValidator(checked_hospital)]


def checked_shown(value: str) -> str:
    """Return a name for people itself; raises ValueError with what is allowed."""
    if not value or value != printable(value, at_most=60):
        raise ValueError("use 1 to 60 characters that can be seen, on one line")
    return value


ShownName = Annotated[str, AfterValidator(checked_shown)]

ColumnName = Annotated[str, Field(min_length=1, max_length=200)]  # of a table, a class, a tag
Unit = Annotated[str, Field(max_length=100)]
Said = Annotated[str, Field(max_length=200)]  # a name, a version or a step in a message
Version = Annotated[str, Field(max_length=2**14)]  # of a program, of which a little is shown
Sha256 = Annotated[str, Field(max_length=64, pattern=r"^[0-9a-f]{64}$")]


_PLAIN = re.compile(r"(-?)(0|[1-9][0-9]*|(?=\.[0-9]))(?:\.([0-9]*))?")


# Spaces that do not break a line, by the usual one; and what is not seen at all: soft hyphens,
# marks of order and of direction. Copied texts and web pages bring them along.
_UNSEEN = str.maketrans(
    "\u00a0\u2007\u202f",
    "   ",
    "\u00ad\u200b\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2067\u2068\u2069\ufeff",
)


def as_seen(value: object) -> str:
    """Return a text as it is seen: the same for an accent of its own, and without hidden marks."""
    return unicodedata.normalize("NFC", str(value).translate(_UNSEEN).strip())


def canonical(value: object) -> str:
    """Return how a category or class value is compared: `1`, `1.0` and ` 1 ` are the same.

    As text, so that long codes (SNOMED CT) stay apart. Plain decimals alone are numbers: 1E1, 01,
    1_0, +1 and Infinity are different codes.
    """
    text = as_seen(value)
    if isinstance(value, float) and isfinite(value):
        text = format(Decimal(text), "f")  # 1e+16
    found = _PLAIN.fullmatch(text)
    if found is None:
        return text
    sign, whole, fraction = found[1], found[2] or "0", (found[3] or "").rstrip("0")
    number = f"{whole}.{fraction}" if fraction else whole
    return number if number == "0" else sign + number


Code = Annotated[str, BeforeValidator(canonical, json_schema_input_type=str | int | float | bool)]


Number = TypeVar("Number")


def _kind(value: object) -> str:
    """Return the kind, so that the message for a wrong number is about numbers, not words."""
    return "auto" if isinstance(value, str) else "number"


OrAuto = Annotated[
    Annotated[Number, Tag("number")] | Annotated[Literal["auto"], Tag("auto")], Discriminator(_kind)
]

LARGEST_FIGURE = 1e100  # in a message: beyond what a float32 model can err by; pages show figures
LARGEST_COUNT = 2**53  # beyond, a count is no longer exact as a float64
Count = Annotated[int, Field(ge=0, le=LARGEST_COUNT)]
Figure = Annotated[float, Field(ge=-LARGEST_FIGURE, le=LARGEST_FIGURE)]
