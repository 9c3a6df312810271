"""JSON files of a known format, with a sentence for everything that can be wrong with one.

Each has a checksum of its values, however they are laid out: a digit that a disk lost, or a hand
changed, would otherwise be another figure.
"""

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from erosion_common.errors import ErosionError
from erosion_common.settings.base import validate
from erosion_common.support.files import MOST_KEPT_BYTES, read_named, write_atomically
from erosion_common.support.software import software_version
from erosion_common.support.text import printable

M = TypeVar("M", bound=BaseModel)
CHECKSUM = "crc32"  # the key
WRITER = "erosion"  # the key of the version that wrote the file


def with_checksum(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object and the checksum of its values."""
    return {**values, CHECKSUM: _checksum(values)}


def without_checksum(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object that `with_checksum` got. Raises ValueError for a wrong checksum."""
    rest = {key: value for key, value in values.items() if key != CHECKSUM}
    if CHECKSUM not in values:
        raise ValueError(f"it has no checksum ({CHECKSUM}), so this program did not write it")
    if values[CHECKSUM] != _checksum(rest):
        raise ValueError("its checksum is not that of its values, so it was changed or damaged")
    return {key: value for key, value in rest.items() if key != WRITER}


def _checksum(values: Mapping[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(values, sort_keys=True).encode()):08x}"


def write_json(path: Path, model: BaseModel, *, mode: int | None = None) -> None:
    """Put `model` in place of `path`, for `read_json`. Raises OSError."""
    values = with_checksum({**json.loads(model.model_dump_json()), WRITER: software_version()})
    write_atomically(path, json.dumps(values, indent=2, ensure_ascii=False) + "\n", mode=mode)


def read_json(
    path: Path, model: type[M], *, version: int, error: type[ErosionError], remedy: str
) -> M:
    """Read the file as a `model` with `version` as its key `format`.

    Raises `error` for a file that is truncated, changed, of another version, or with wrong keys or
    values; `remedy`, for when there is no backup, ends the message. FileNotFoundError is left to
    the caller, who knows what its absence means.
    """
    remedy_of_damage = f"Bring it back from a backup, or: {remedy}"
    try:
        raw = json.loads(read_named(path, most_bytes=MOST_KEPT_BYTES).decode())
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as problem:
        raise error(f"{path} cannot be read ({problem})", remedy=remedy_of_damage) from None
    if not isinstance(raw, dict):
        raise error(f"{path} is not a JSON object", remedy=remedy_of_damage)
    if (found := raw.get("format")) != version or isinstance(found, bool):
        said = "does not say its format" if found is None else f"is of format {found!r:.40}"
        writer = printable(str(raw.get(WRITER, "(the version that wrote it)")), at_most=40)
        raise error(
            f"{path} {said}; erosion {software_version()} reads format {version}",
            remedy=f"Use erosion {writer}, or: {remedy}",
        )
    rest = {key: value for key, value in raw.items() if key not in (CHECKSUM, WRITER)}
    try:
        found = validate(model, rest, str(path), error)
    except error as problem:
        raise error(f"{problem}\n{remedy_of_damage}") from None
    try:
        without_checksum(raw)
    except ValueError as problem:
        raise error(f"{path} cannot be used: {problem}", remedy=remedy_of_damage) from None
    return found
