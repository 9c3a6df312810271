"""A folder with one table for each hospital."""

import re
import unicodedata
from pathlib import Path

from erosion.client.dataset.sources.data_source import entries_of
from erosion.client.dataset.sources.table_file import PARQUET, SEPARATORS
from erosion.common.errors import DataError

BESIDE = re.compile(r"[.~]|readme|licen[cs]e|codebook|data.?dictionary|changelog", re.I)
SUFFIXES = (*SEPARATORS, *PARQUET)


def tables_in(folder: Path) -> dict[str, Path]:
    """The tables by the names of their hospitals; raises DataError where there are none."""
    files = [f for f in entries_of(folder) if f.suffix.lower() in SUFFIXES and _is_table(f)]
    if not files:
        raise DataError(
            f"The folder {folder} holds no table ({', '.join(SUFFIXES)}). Put one there for each"
            " hospital, named after it."
        )
    found: dict[str, Path] = {}
    for file in files:
        name = hospital_name(file.stem)
        if name in found:
            raise DataError(
                f"{file} and {found[name]} are both of the hospital {name!r}. Rename one."
            )
        found[name] = file
    return found


def _is_table(file: Path) -> bool:
    """Not a note beside the tables, nor what an office program leaves of an open file."""
    return file.is_file() and not BESIDE.match(file.name)


def hospital_name(text: str) -> str:
    """A name that studies allow: "St. Anna Zürich" becomes "st-anna-zurich"."""
    letters = unicodedata.normalize("NFKD", text.casefold())
    ascii_only = "".join(c for c in letters if not unicodedata.combining(c))
    plain = re.sub(r"[^a-z0-9_-]+", "-", ascii_only).strip("-_")[:48]
    return plain or "hospital"
