"""Names of hospitals, studies and arms that are safe in files and on terminals."""

import re
from typing import Annotated

from pydantic import AfterValidator


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
