"""Arguments of the public functions are what their annotations say, or are named in words."""

import os
from typing import Any

from erosion.common.errors import ErosionError


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
