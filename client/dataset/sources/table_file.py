"""Tables in files, whatever their format."""

import csv
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from pydantic import AfterValidator, Field, model_validator

from erosion.client.dataset.row_hashes import hashes_of_table
from erosion.client.dataset.sources.data_source import (
    TableSource,
    check_path,
    is_there,
    revision_of,
)
from erosion.client.dataset.sources.delimited import NO_PATIENTS, Marks, distinct, read_delimited
from erosion.client.dataset.sources.file_content import FileContent, content_of, suffix_of
from erosion.client.dataset.sources.spreadsheet import WORKBOOKS, read_sheet
from erosion.client.dataset.sources.typed_columns import (
    JSON_LINES,
    READERS,
    read_json_lines,
    read_statistics,
)
from erosion.client.dataset.text_table import TextTable, text_column
from erosion.client.dataset.total_rows import total_rows, totals_found
from erosion.client.finding import Finding
from erosion.common.errors import DataError

SEPARATORS = {".csv": ",", ".tsv": "\t", ".txt": ",", ".data": ","}  # by suffix
PARQUET = (".parquet", ".pq")
SUFFIXES = (*SEPARATORS, *PARQUET, *WORKBOOKS, *READERS, *JSON_LINES)


def _checked_separator(value: str) -> str:
    if len(value) != 1 or value in '"\r\n' or not value.isascii():
        raise ValueError('give one character of ASCII, for example ";" or "\\t"')
    return value


def _checked_encoding(value: str) -> str:
    try:
        "".encode(value)  # a codec from bytes to bytes, such as hex, cannot
    except (LookupError, ValueError):
        raise ValueError(
            'it must be an encoding of text, such as "utf-8", "utf-16" or "cp1252"'
        ) from None
    return value


class TableFile(TableSource):
    """A table in one file: text, Parquet, a workbook, SPSS, SAS, Stata or JSON lines."""

    source: Literal["table"] = "table"
    path: Path
    separator: Annotated[str, AfterValidator(_checked_separator)] | None = None  # None: found out
    header: tuple[str, ...] | None = Field(
        default=None, min_length=1
    )  # column names, for a file whose first line is already a patient
    encoding: Annotated[str, AfterValidator(_checked_encoding)] | None = None  # None: found out
    footer_lines: int = Field(default=0, ge=0, le=1000)  # at the end, that are no patients
    sheet: str | None = Field(default=None, min_length=1)  # of a workbook; None: the only one
    value_labels: Literal["codes", "labels"] = "codes"  # what is read where values have labels

    @model_validator(mode="after")
    def _marks_differ(self) -> Self:
        if self.separator is not None and self.separator == self.decimal:
            raise ValueError(
                f"separator and decimal are both {self.decimal!r}; columns and decimals need"
                " different marks"
            )
        return self

    def describe(self) -> str:
        """The file."""
        return f"Data file {self.path}"

    def check(self) -> Iterator[Finding]:
        """The file is there and can be read."""
        yield check_path(self.path)

    def revision(self) -> str:
        """Of the file."""
        return revision_of(self.path)

    def read_rows(self, wanted: Collection[str]) -> TextTable:
        """The wanted columns of the file."""
        return _read_table(self, wanted)


def _read_table(source: TableFile, wanted: Collection[str]) -> TextTable:
    path = source.path
    suffix = suffix_of(path)
    if not is_there(path):
        raise DataError(f"There is no data file {path}. Check the path (data.path in a site file).")
    if path.is_dir():
        raise DataError(
            f"Data file {path} is a folder, but the study wants a table: give a file. If it holds"
            ' tables, write source = "duckdb" under [data], if images, source = "images".'
        )
    if not path.is_file():  # a pipe or a device, which may never end
        raise DataError(f"Data file {path} is no ordinary file. Give a file of the patients.")
    if suffix not in (*SUFFIXES, ".zip"):
        raise DataError(
            f"Data file {path}: a table in {suffix or 'a file without suffix'} cannot be read;"
            f" export it as one of {', '.join(SUFFIXES)}, also packed (.csv.gz, .zip)."
        )
    content = content_of(path)
    if content.suffix not in SUFFIXES:
        raise DataError(
            f"Data file {path} holds a table in {content.suffix or 'a file without suffix'}, which"
            f" cannot be read; export it as one of {', '.join(SUFFIXES)}."
        )
    try:
        table = _read(source, content, wanted)
    except UnicodeError:
        raise DataError(
            f"Data file {path} is not text in one encoding. Save it as UTF-8, or set encoding under"
            " [data]."
        ) from None
    except (pa.ArrowException, csv.Error, OSError) as problem:
        # Behind "got 4:" stands the row itself, which is nobody's to see.
        reason = re.sub(r"(got \d+):.*", r"\1", str(problem).splitlines()[0])
        remedy = "and check that every row has as many columns as the first"
        if content.suffix in PARQUET:
            remedy = "its columns as numbers, text or dates"
        raise DataError(
            f"Data file {path} cannot be read: {reason}. Export it again, {remedy}."
        ) from None
    if table.num_rows == 0:
        raise DataError(NO_PATIENTS.format(path=path))
    return table


def _read(source: TableFile, content: FileContent, wanted: Collection[str]) -> TextTable:
    """The one reader of every format; raises DataError, ArrowException, csv.Error, OSError."""
    suffix, origin = content.suffix, source.describe()
    if suffix in PARQUET:
        return _read_parquet(content, origin, source.footer_lines, wanted)
    if suffix in READERS:
        values = source.value_labels
        return read_statistics(content, origin, source.encoding, values, wanted)
    if suffix in JSON_LINES:
        return read_json_lines(content, origin, source.encoding, wanted)
    marks = Marks(
        SEPARATORS.get(suffix, ","),
        source.separator,
        source.encoding,
        source.header,
        source.footer_lines,
    )
    if suffix in WORKBOOKS:
        return read_sheet(content, origin, source.sheet, marks, wanted)
    return read_delimited(content, origin, marks, wanted)


def _read_parquet(
    content: FileContent, origin: str, footer_lines: int, wanted: Collection[str]
) -> TextTable:
    # Opened here, as pyarrow takes no name that is not UTF-8.
    with content.open() as opened, pyarrow.parquet.ParquetFile(opened) as file:
        header = distinct(content, list(file.schema_arrow.names))
        read, num_rows = file.read(), file.metadata.num_rows
    found = {name: read.column(name) for name in header}
    columns = {name: text_column(name, found[name]) for name in header if name in set(wanted)}
    hashes = hashes_of_table(found, num_rows)
    rows = np.arange(num_rows)
    totals = None if footer_lines else total_rows(found, columns, rows)
    footer, notes = totals_found(totals, rows + 1, "row")
    table = TextTable(
        origin, tuple(header), columns, num_rows, "row", 1, notes, row_hashes=hashes, footer=footer
    )
    return table.without_last(footer_lines)
