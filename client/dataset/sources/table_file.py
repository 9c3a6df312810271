"""Tables in files of any format."""

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Literal, Self

import pyarrow as pa
import pyarrow.parquet
from pydantic import AfterValidator, Field, model_validator

from erosion.client.dataset.sources.data_source import (
    OnDisk,
    TableSource,
    is_there,
)
from erosion.client.dataset.sources.delimited import NO_PATIENTS, Marks, distinct, read_delimited
from erosion.client.dataset.sources.file_content import FileContent, content_of, suffix_of
from erosion.client.dataset.sources.typed_files import (
    JSON_LINES,
    STATISTICS,
    WORKBOOKS,
    read_json_lines,
    read_sheet,
    read_statistics,
)
from erosion.client.dataset.text_table import TextTable, text_columns
from erosion.client.dataset.whole_table import whole_table
from erosion.common.errors import DataError

SEPARATORS = {".csv": ",", ".tsv": "\t", ".txt": ",", ".data": ","}  # by suffix
PARQUET = (".parquet", ".pq")
ONLY_OF = {"sheet": WORKBOOKS, "value_labels": tuple(STATISTICS)}  # keys, by suffixes
SUFFIXES = (*SEPARATORS, *PARQUET, *WORKBOOKS, *STATISTICS, *JSON_LINES)


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


class TableFile(OnDisk, TableSource):
    """A table in one file: text, Parquet, a workbook, SPSS, SAS, Stata or JSON lines."""

    source: Literal["table"] = "table"
    path: Path = Field(
        description="The file: text (.csv, .tsv, .txt, .data), Parquet, a workbook (.xlsx, "
        ".xlsm, .xls, .ods), SPSS, SAS or Stata (.sav, .zsav, .por, .sas7bdat, .xpt, "
        ".dta) or JSON lines (.jsonl, .ndjson); text also packed (.csv.gz, or alone in a .zip)."
    )
    separator: Annotated[str, AfterValidator(_checked_separator)] | None = Field(
        default=None,
        description='Mark between columns, such as `";"` or `"\\t"`. Left out: worked out from '
        "the file, and reported.",
    )
    header: tuple[str, ...] | None = Field(
        default=None,
        min_length=1,
        description="Column names, for a file without a header.",
    )
    encoding: Annotated[str, AfterValidator(_checked_encoding)] | None = Field(
        default=None,
        description='Encoding of the text, such as `"utf-8"` or `"cp1252"`. Left out: worked out '
        "from the file, and reported.",
    )
    footer_lines: int = Field(
        default=0,
        ge=0,
        le=1000,
        description="Lines at the end of the file that are not patients, such as totals.",
    )
    sheet: str | None = Field(
        default=None,
        min_length=1,
        description="Sheet of a workbook that holds the patients. Left out: the only one that is "
        "not empty.",
    )
    value_labels: Literal["codes", "labels"] = Field(
        default="codes",
        description='What is read of values that have labels in SPSS or Stata: `"codes"` or '
        '`"labels"`. What the file declares as missing is missing either way.',
    )

    @model_validator(mode="after")
    def _marks_differ(self) -> Self:
        if self.separator is not None and self.separator == self.decimal:
            raise ValueError(
                f"separator and decimal are both {self.decimal!r}; columns and decimals need"
                " different marks"
            )
        return self

    def describe(self) -> str:
        """Return the file."""
        return f"Data file {self.path}"

    def read_rows(self, wanted: Collection[str]) -> TextTable:
        """Read the wanted columns of the file."""
        return _read_table(self, wanted)


def _read_table(source: TableFile, wanted: Collection[str]) -> TextTable:
    path = source.path
    if not is_there(path):
        raise DataError(f"There is no data file {path}. Check the path (data.path in a site file).")
    if path.is_dir():
        raise DataError(
            f"Data file {path} is a folder, but the study wants a table: give a file. If it holds"
            ' tables, write source = "duckdb" under [data], if images, source = "images".'
        )
    if not path.is_file():  # a pipe or a device, which may never end
        raise DataError(f"Data file {path} is no ordinary file. Give a file of the patients.")
    if suffix_of(path) not in (*SUFFIXES, ".zip"):
        raise _unknown_format(path, suffix_of(path))
    content = content_of(path)
    if content.suffix not in SUFFIXES:
        raise _unknown_format(path, content.suffix)
    for key, suffixes in ONLY_OF.items():
        if key in source.model_fields_set and content.suffix not in suffixes:
            raise DataError(
                f"Data file {path}: {key} is of {', '.join(suffixes)} alone, and this is a table in"
                f" {content.suffix}. Remove {key} under [data]."
            )
    try:
        table = _read(source, content, set(wanted))
    except (pa.ArrowException, OSError) as problem:
        raise DataError(
            f"Data file {path} cannot be read: {str(problem).splitlines()[0]}. Export it again, its"
            " columns as numbers, text or dates."
        ) from None
    if table.num_rows == 0:
        raise DataError(NO_PATIENTS.format(path=path))
    return table


def _unknown_format(path: Path, suffix: str) -> DataError:
    return DataError(
        f"Data file {path}: a table in {suffix or 'a file without suffix'} cannot be read; export"
        f" it as one of {', '.join(SUFFIXES)}, also packed (.csv.gz, .zip)."
    )


def _read(source: TableFile, content: FileContent, wanted: Collection[str]) -> TextTable:
    """Read a file of any format. Raises DataError, ArrowException, OSError."""
    suffix, origin = content.suffix, source.describe()
    if suffix in PARQUET:
        table = _read_parquet(content, origin, source.footer_lines, wanted)
    elif suffix in STATISTICS:
        labels = source.value_labels == "labels"
        table = read_statistics(content, origin, source.encoding, labels, wanted)
    elif suffix in JSON_LINES:
        table = read_json_lines(content, origin, source.encoding, wanted)
    else:
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
    return table.without_last(source.footer_lines)


def _read_parquet(
    content: FileContent, origin: str, footer_lines: int, wanted: Collection[str]
) -> TextTable:
    # Opened here, because pyarrow accepts only UTF-8 names.
    with content.open() as opened, pyarrow.parquet.ParquetFile(opened) as file:
        distinct(content, file.schema_arrow.names)
        found = file.read()
    header, columns = text_columns(found, wanted)
    return whole_table(origin, header, columns, wanted, found.num_rows, footer_lines=footer_lines)
