"""Tables of typed values: SPSS, SAS and Stata, through pyreadstat, and JSON lines."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, time
from io import TextIOWrapper
from typing import Any, Literal

import numpy as np

from erosion.client.dataset.row_hashes import hashes_of_rows
from erosion.client.dataset.sources.delimited import distinct
from erosion.client.dataset.sources.file_content import CUT_OFF, FileContent
from erosion.client.dataset.sources.found_encoding import check_encoding
from erosion.client.dataset.text_table import ColumnEncoder, TextColumn, TextTable
from erosion.common.errors import DataError
from erosion.common.support.software import install_command

READERS = {
    ".sav": "read_sav",
    ".zsav": "read_sav",
    ".por": "read_por",
    ".dta": "read_dta",
    ".sas7bdat": "read_sas7bdat",
    ".xpt": "read_xport",
}  # pyreadstat's own, by suffix
JSON_LINES = (".jsonl", ".ndjson")
MOST_CELLS = 2**27
MOST_COLUMNS = 20_000
XPORT_RECORD = 80  # bytes, of which a file of SAS's transport format has a whole number
SHOWN = 5
MIDNIGHT = time()
FLAT = (
    "FHIR's resources are not the rows of a table: flatten them into one row for each patient first"
    " (SQL on FHIR's views, Pathling), or query them with DuckDB"
)


def read_statistics(
    content: FileContent,
    origin: str,
    encoding: str | None,
    values: Literal["codes", "labels"],
    wanted: Collection[str],
) -> TextTable:
    """The wanted columns of a file of SPSS, SAS or Stata. Raises DataError.

    What the file declares as missing is missing. `values`: of those that have a label, the codes or
    the labels.
    """
    try:
        import pyreadstat
    except ModuleNotFoundError:
        raise DataError(
            f"{origin} is read with pyreadstat, which is not installed. Run:"
            f" {install_command('formats')}"
        ) from None
    if content.suffix == ".xpt" and content.num_bytes % XPORT_RECORD:
        raise DataError(f"{origin} ends in the middle of a record, so it {CUT_OFF}")
    read = getattr(pyreadstat, READERS[content.suffix])
    given = {} if encoding is None else {"encoding": encoding}
    try:
        with content.open() as file:
            _, said = read(file, metadataonly=True, **given)
        if (said.number_rows or 0) * said.number_columns > MOST_CELLS:
            raise DataError(
                f"{origin} has {said.number_rows:,} rows and {said.number_columns:,} columns, more"
                " than are read. Export only the study's columns."
            )
        with content.open() as file:
            found, said = read(file, output_format="dict", **given)
    except DataError:
        raise
    except Exception as problem:  # noqa: BLE001 - a damaged file may raise anything
        reason = (str(problem).splitlines() or ["damaged"])[0][:200]
        raise DataError(
            f"{origin} cannot be read: {reason}. Save it again; if letters are meant, set encoding"
            " under [data]."
        ) from None
    labels: Mapping[str, Mapping[Any, str]] = said.variable_value_labels
    labelled = [name for name in found if labels.get(name)]
    notes = []
    if labelled and values == "codes":
        some = ", ".join(labelled[:SHOWN]) + (", ..." if len(labelled) > SHOWN else "")
        notes = [f'{some}: read as codes, and have labels (value_labels = "labels" reads those)']
    columns = {
        name: [
            _plain(labels[name].get(v, v) if values == "labels" and name in labelled else v)
            for v in column
        ]
        for name, column in found.items()
    }
    return _table(content, origin, columns, wanted, notes)


def _plain(value: Any) -> Any:
    """Whole numbers without a point, days without a time."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, datetime) and value.time() == MIDNIGHT:
        return value.date()
    return value


def read_json_lines(
    content: FileContent, origin: str, encoding: str | None, wanted: Collection[str]
) -> TextTable:
    """The wanted columns of a file with an object on each line. Raises DataError.

    What lies deeper is a column by its path: `name.0.family`.
    """
    check_encoding(content, encoding or "utf-8")
    rows: list[dict[str, Any]] = []
    lines: list[int] = []
    kinds: set[str] = set()
    names: dict[str, None] = {}
    with TextIOWrapper(content.open(), encoding=encoding or "utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            row = dict(_flat(_object(line, number, content, origin)))
            if isinstance(kind := row.get("resourceType"), str):
                kinds.add(kind)
            names.update(dict.fromkeys(row))
            rows.append(row)
            lines.append(number)
            if len(names) > MOST_COLUMNS or len(names) * len(rows) > MOST_CELLS:
                raise DataError(
                    f"{origin} has {len(rows):,} rows and {len(names):,} columns, more than are"
                    " read. Export only the study's columns."
                )
    if kinds - {"Patient"}:
        raise DataError(f"{origin} holds FHIR's {', '.join(sorted(kinds))}. {FLAT}.")
    notes = ["FHIR's Patient, a row each; what lies deeper is called by its path"] if kinds else []
    columns = {name: [row.get(name) for row in rows] for name in names}
    return _table(content, origin, columns, wanted, notes, lines)


def _object(line: str, number: int, content: FileContent, origin: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        if not line.endswith("\n") and line.lstrip().startswith("{"):
            raise DataError(
                f"{origin} ends in the middle of line {number}, so it {CUT_OFF}"
            ) from None
        found = None
    if not isinstance(found, dict):
        raise DataError(
            f"{origin}: line {number} is no JSON object. Give one object on each line, such as"
            ' {"age": 63, "sex": "f"}.'
        )
    return found


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict | list):
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        for key, one in inner:
            yield from _flat(one, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def _table(
    content: FileContent,
    origin: str,
    values: Mapping[str, Sequence[Any]],
    wanted: Collection[str],
    notes: Sequence[str],
    lines: Sequence[int] | None = None,
) -> TextTable:
    header = distinct(content, list(values))
    columns: dict[str, TextColumn] = {}
    for name, column in zip(header, values.values(), strict=True):
        encoder = ColumnEncoder(name, origin)
        encoder.add(column)
        columns[name] = encoder.column()
    num_rows = len(next(iter(columns.values())).codes) if columns else 0
    named = (
        TextColumn(tuple(f"{name}\0{text}" for text in c.texts), c.codes)
        for name, c in columns.items()
    )
    return TextTable(
        origin,
        tuple(header),
        {name: column for name, column in columns.items() if name in set(wanted)},
        num_rows,
        "row" if lines is None else "line",
        1,
        tuple(notes),
        None if lines is None else np.array(lines),
        row_hashes=hashes_of_rows(named, num_rows),
    )
