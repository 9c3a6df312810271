"""Reads a JSON file of a known format, with a sentence for everything that can be wrong with it."""

import json
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from erosion.common.errors import ErosionError
from erosion.common.settings.base import validate
from erosion.common.support.files import MOST_KEPT_BYTES, read_named

M = TypeVar("M", bound=BaseModel)


def read_json(
    path: Path, model: type[M], *, version: int, error: type[ErosionError], remedy: str
) -> M:
    """The file as a `model`, whose key `format` is `version`.

    Raises `error` for a file that is missing, truncated, of another version, or whose keys or
    values are not as they should be; `remedy` ends the message. FileNotFoundError is left to the
    caller, who knows what its absence means.
    """
    try:
        raw = json.loads(read_named(path, most_bytes=MOST_KEPT_BYTES).decode())
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as problem:
        raise error(f"{path} cannot be read ({problem}). {remedy}") from None
    return validated(raw, model, where=str(path), version=version, error=error, remedy=remedy)


def validated(
    raw: Any, model: type[M], *, where: str, version: int, error: type[ErosionError], remedy: str
) -> M:
    """Parsed JSON as a `model`; raises as `read_json` does."""
    if not isinstance(raw, dict):
        raise error(f"{where} is not a JSON object. {remedy}")
    if (found := raw.get("format")) != version or isinstance(found, bool):
        said = "does not say its format" if found is None else f"is of format {found!r:.40}"
        raise error(
            f"{where} {said}; this version of the program reads format {version}. Use the version"
            f" that wrote it, or: {remedy}"
        )
    try:
        return validate(model, raw, where, error)
    except error as problem:
        raise error(f"{problem}\n{remedy}") from None
