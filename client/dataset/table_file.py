"""Reads a table from CSV or Parquet as text, before the study gives the text a meaning."""

import csv
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from erosion.client.site_file import DataSource
from erosion.common.errors import DataError

SEPARATORS = {".csv": ",", ".tsv": "\t", ".txt": ",", ".data": ","}  # by suffix
PARQUET = (".parquet", ".pq")
MAX_FILE_BYTES = 4 * 2**30  # a file beyond this is a mistake, not a hospital


@dataclass(frozen=True, slots=True)
class TextColumn:
    """A column as its distinct values: there are far fewer of them than of rows."""

    texts: tuple[str, ...]  # distinct, without spaces around; "" where there is none
    codes: NDArray[np.int64]  # (n,) index into `texts`


@dataclass(frozen=True, slots=True)
class TextTable:
    """The wanted columns of a file."""

    path: Path
    header: tuple[str, ...]  # every column of the file
    columns: Mapping[str, TextColumn]  # those of the wanted ones that exist, by local name
    num_rows: int
    row_word: str  # how people find a row: the "line" of a CSV, the "row" of a Parquet file
    first_row: int  # number of the first patient's line or row

    def place(self, index: int) -> str:
        """Where the patient with this index (from 0) stands in the file."""
        return f"{self.row_word} {self.first_row + index}"


def read_table(source: DataSource, wanted: Collection[str]) -> TextTable:
    """Read the wanted columns (local names) of a file; raises DataError where it is no table."""
    path = source.path
    suffix = path.suffix.lower()
    if not path.exists():
        raise DataError(f"There is no data file {path}. Check data.path in the site file.")
    if path.is_dir():
        raise DataError(f"Data file {path} is a folder, but the study wants a table: give a file.")
    if suffix not in (*SEPARATORS, *PARQUET):
        raise DataError(
            f"Data file {path}: a table in {suffix or 'a file without suffix'} cannot be read;"
            f" export it as one of {', '.join((*SEPARATORS, *PARQUET))}."
        )
    num_bytes = path.stat().st_size
    if num_bytes == 0:
        raise DataError(f"Data file {path} is empty. Export the patients into it.")
    if num_bytes > MAX_FILE_BYTES:
        raise DataError(
            f"Data file {path} has {num_bytes / 2**30:.1f} GiB, more than the"
            f" {MAX_FILE_BYTES // 2**30} GiB that are read. Export only the study's columns."
        )
    read = _read_parquet if suffix in PARQUET else _read_delimited
    try:
        table = read(source, wanted)
    except UnicodeDecodeError:
        raise DataError(f"Data file {path} is not UTF-8 text. Save it as UTF-8.") from None
    except (pa.ArrowException, csv.Error, OSError) as problem:
        reason = str(problem).splitlines()[0]
        raise DataError(
            f"Data file {path} cannot be read: {reason}. Export it again, and check that every"
            " row has as many columns as the first."
        ) from None
    if table.num_rows == 0:
        raise DataError(f"Data file {path} has a header and no patients. Export them into it.")
    return table


def _read_delimited(source: DataSource, wanted: Collection[str]) -> TextTable:
    separator = source.separator or SEPARATORS[source.path.suffix.lower()]
    header, header_lines = _header(source, separator)
    present = [name for name in header if name in set(wanted)]
    table = pyarrow.csv.read_csv(
        source.path,
        read_options=pyarrow.csv.ReadOptions(column_names=header, skip_rows=header_lines),
        parse_options=pyarrow.csv.ParseOptions(delimiter=separator, newlines_in_values=True),
        convert_options=pyarrow.csv.ConvertOptions(
            # Without this list every column would be converted, and an empty list means all.
            include_columns=present or header[:1],
            column_types=dict.fromkeys(header, pa.large_string()),
        ),
    )
    columns = {name: _text_column(name, table.column(name)) for name in present}
    return TextTable(source.path, tuple(header), columns, table.num_rows, "line", header_lines + 1)


def _header(source: DataSource, separator: str) -> tuple[list[str], int]:
    """The column names, and the number of lines that they take at the top of the file."""
    if source.header is not None:
        return _distinct(source.path, list(source.header)), 0
    with source.path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter=separator)
        for names in reader:
            if names:
                return _distinct(source.path, [name.strip() for name in names]), reader.line_num
    raise DataError(f"Data file {source.path} holds blank lines only. Export the patients into it.")


def _read_parquet(source: DataSource, wanted: Collection[str]) -> TextTable:
    file = pyarrow.parquet.ParquetFile(source.path)
    header = _distinct(source.path, list(file.schema_arrow.names))
    present = [name for name in header if name in set(wanted)]
    table = file.read(columns=present)
    columns = {name: _text_column(name, table.column(name)) for name in present}
    return TextTable(source.path, tuple(header), columns, file.metadata.num_rows, "row", 1)


def _distinct(path: Path, header: list[str]) -> list[str]:
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise DataError(
            f"Data file {path} has the column {', '.join(map(repr, twice))} more than once."
            " Rename or remove the others."
        )
    return header


def _text_column(name: str, column: "pa.ChunkedArray") -> TextColumn:
    """Every kind of column as text: 5 becomes "5", true "1", a gap "", and NaN "nan"."""
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    try:
        column = column.cast(pa.large_string()).fill_null("")
    except pa.ArrowNotImplementedError:
        raise pa.ArrowException(f"column {name!r} is of type {column.type}") from None
    encoded = column.combine_chunks().dictionary_encode()
    raw = encoded.dictionary.to_pylist()
    texts = list(dict.fromkeys(text.strip() for text in raw))
    position = {text: index for index, text in enumerate(texts)}
    merged = np.array([position[text.strip()] for text in raw], dtype=np.int64)
    return TextColumn(tuple(texts), merged[encoded.indices.to_numpy()])
