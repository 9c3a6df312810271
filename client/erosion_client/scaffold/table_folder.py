"""A folder with one table for each hospital."""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np

from erosion_client.dataset.sources.data_source import DataSource, TableSource, entries_of
from erosion_client.dataset.sources.file_content import stem_of, suffix_of
from erosion_client.dataset.sources.table_file import SUFFIXES
from erosion_client.dataset.text_table import RowHashes, TextTable, hashes_of_table
from erosion_client.scaffold.vocabulary import is_id
from erosion_common.errors import DataError
from erosion_common.support.text import without_accents

BESIDE = re.compile(r"[.~]|readme|licen[cs]e|codebook|data.?dictionary|changelog", re.I)
MOST_SHARED = 0.05  # of the smaller table's rows, beyond what chance explains
FEWEST_SHARED = 11  # rows


def tables_in(folder: Path) -> dict[str, Path]:
    """Return the tables by the names of their hospitals. Raises DataError where there are none."""
    files = table_files(folder)
    if not files:
        raise DataError(
            f"The folder {folder} holds no table ({', '.join(SUFFIXES)})",
            remedy="Put one there for each hospital, named after it.",
        )
    found: dict[str, Path] = {}
    for file in files:
        name = hospital_name(stem_of(file))
        if name in found:
            raise DataError(
                f"{file} and {found[name]} are both of the hospital {name!r}", remedy="Rename one."
            )
        found[name] = file
    return found


def table_files(folder: Path) -> list[Path]:
    """Return all tables. Raises DataError where the folder cannot be read."""
    return [
        file
        for file in entries_of(folder)  # without notes and office programs' lock files
        if suffix_of(file) in SUFFIXES and file.is_file() and not BESIDE.match(file.name)
    ]


def shared_rows(hospitals: Mapping[str, DataSource]) -> Iterator[str]:
    """Yield a warning for each two hospitals with tables that share rows."""
    tables = {name: found for name, source in hospitals.items() if (found := _texts(source))}
    rows_of = cache(lambda name, columns: _hashes(tables[name], columns))  # most pairs share all
    for pair in combinations(tables, 2):
        fewer, more = sorted(pair, key=lambda name: tables[name].num_rows)
        columns = frozenset(
            name
            for name in tables[fewer].columns.keys() & tables[more].columns.keys()
            if not is_id(name)
        )
        if not columns:
            continue
        (rows, repeated), (others, repeated_there) = (
            rows_of(name, columns) for name in (fewer, more)
        )
        # Where rows differ little, chance makes them equal, within a table half as often as
        # between one row and all of another table.
        by_chance = 2 * max(repeated, repeated_there)
        num_shared = int(np.isin(rows, others).sum())
        if num_shared >= FEWEST_SHARED and num_shared > (MOST_SHARED + by_chance) * len(rows):
            yield (
                f"{more} holds {num_shared} of {fewer}'s {len(rows)} rows: patients of one are then"
                " tested by models that the other has trained on them; leave one out, or let each"
                " patient be of one hospital"
            )


def _texts(source: DataSource) -> TextTable | None:
    if not isinstance(source, TableSource):
        return None
    try:
        return source.read(source.read(()).header)
    except DataError:  # the hospital itself reports it when it reads the table
        return None


def _hashes(table: TextTable, columns: frozenset[str]) -> tuple[RowHashes, float]:
    """Return (n,) hashes of rows, distinguishing columns, and the share of repeated rows."""
    hashes = hashes_of_table({name: table.columns[name] for name in columns}, table.num_rows)
    return hashes, 1 - len(np.unique(hashes)) / len(hashes)


def hospital_name(text: str) -> str:
    """Return a name that studies allow: "St. Anna Zürich" becomes "st-anna-zurich"."""
    plain = (
        re.sub(r"[^a-z0-9_-]+", "-", without_accents(text.casefold())).strip("-_")[:48].rstrip("-_")
    )
    return plain or "hospital"
