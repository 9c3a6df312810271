"""Names, and other short texts of studies and messages, each with its longest length."""

import re
from typing import Annotated

from pydantic import AfterValidator, Field


def is_name(value: str) -> bool:
    """Could a hospital, a study or an arm have this name?"""
    return re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,47}", value) is not None


def checked_name(value: str) -> str:
    """The name itself; raises ValueError with what is allowed."""
    if not is_name(value):
        raise ValueError(
            "use up to 48 small letters, digits, - and _, starting with a letter or digit"
        )
    return value


Name = Annotated[str, AfterValidator(checked_name)]

# What stands for several hospitals, for none or for the other side; and what Windows opens as a
# device in place of a file, where records and kits are files by a hospital's name.
_RESERVED = frozenset({"all", "none", "coordinator", "con", "prn", "aux", "nul"}) | {
    f"{device}{number}" for device in ("com", "lpt") for number in range(10)
}


def checked_hospital(value: str) -> str:
    """A hospital's name itself; raises ValueError with what is allowed."""
    if checked_name(value) in _RESERVED:
        raise ValueError(f"{value!r} means something else here; give the hospital another name")
    return value


HospitalName = Annotated[str, AfterValidator(checked_hospital)]

ColumnName = Annotated[str, Field(min_length=1, max_length=200)]  # of a table, a class, a tag
Unit = Annotated[str, Field(max_length=100)]
Said = Annotated[str, Field(max_length=200)]  # a name, a version or a step in a message
Version = Annotated[str, Field(max_length=2**14)]  # of a program, of which a little is shown
Sha256 = Annotated[str, Field(max_length=64, pattern=r"^[0-9a-f]{64}$")]
