"""Checks of the public functions' arguments."""

import errno
import os
from pathlib import Path
from typing import Any

from erosion_common.errors import ErosionError


def check(name: str, value: Any, wanted: str, *kinds: type) -> None:
    """Raise ErosionError unless the argument is of one of the kinds; True is no whole number."""
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        shown = repr(value)
        shown = shown if len(shown) <= 60 else f"a {type(value).__name__}"
        raise ErosionError(f"{name} = {shown}; it must be {wanted}.")


def check_path(name: str, value: Any, *, or_none: bool = False) -> None:
    """The same of a path."""
    kinds = (str, os.PathLike, type(None)) if or_none else (str, os.PathLike)
    check(name, value, "a path" + or_none * " or None", *kinds)
    try:
        Path("." if value is None else value).stat()
    except (OSError, ValueError) as problem:  # a ValueError: for a null character
        if isinstance(problem, ValueError) or problem.errno == errno.ENAMETOOLONG:
            check(name, value, "a path, not the content of a file")
