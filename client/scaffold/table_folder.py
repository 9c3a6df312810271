"""A folder with one table for each hospital."""

import re
from pathlib import Path

from erosion.client.dataset.sources.table_file import PARQUET, SEPARATORS
from erosion.common.errors import DataError

SUFFIXES = (*SEPARATORS, *PARQUET)


def tables_in(folder: Path) -> dict[str, Path]:
    """The tables by the names of their hospitals; raises DataError where there are none."""
    files = sorted(f for f in folder.iterdir() if f.is_file() and f.suffix.lower() in SUFFIXES)
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


def hospital_name(text: str) -> str:
    """A name that studies allow: "St. Anna 2" becomes "st-anna-2"."""
    plain = re.sub(r"[^a-z0-9_-]+", "-", text.casefold()).strip("-_")[:48]
    return plain or "hospital"
