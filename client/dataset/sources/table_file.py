"""Tables in CSV or Parquet files."""

import csv
from collections.abc import Collection, Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal, Self

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from pydantic import AfterValidator, Field, model_validator

from erosion.client.dataset.sources.data_source import TableSource, check_path
from erosion.client.dataset.text_table import TextTable, text_column
from erosion.client.finding import Finding
from erosion.common.errors import DataError

SEPARATORS = {".csv": ",", ".tsv": "\t", ".txt": ",", ".data": ","}  # by suffix
PARQUET = (".parquet", ".pq")
MAX_FILE_BYTES = 4 * 2**30  # a file beyond this is a mistake, not a hospital
SNIFFED_LINES = 20  # from which the separator is found out


def _checked_separator(value: str) -> str:
    if len(value) != 1 or value in '"\r\n':
        raise ValueError('give one character, for example ";" or "\\t"')
    return value


class TableFile(TableSource):
    """A table in one file: .csv, .tsv, .txt, .data or .parquet."""

    source: Literal["table"] = "table"
    path: Path
    separator: Annotated[str, AfterValidator(_checked_separator)] | None = None  # None: found out
    header: tuple[str, ...] | None = Field(
        default=None, min_length=1
    )  # column names, for a file whose first line is already a patient

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

    def read(self, wanted: Collection[str]) -> TextTable:
        """The wanted columns of the file."""
        return _read_table(self, wanted)


def _read_table(source: TableFile, wanted: Collection[str]) -> TextTable:
    path = source.path
    suffix = path.suffix.lower()
    if not path.exists():
        raise DataError(f"There is no data file {path}. Check data.path in the site file.")
    if path.is_dir():
        raise DataError(
            f"Data file {path} is a folder, but the study wants a table: give a file. If it holds"
            ' images, write source = "images" under [data].'
        )
    if not path.is_file():  # a pipe or a device, which may never end
        raise DataError(f"Data file {path} is no ordinary file. Give a file of the patients.")
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


def _read_delimited(source: TableFile, wanted: Collection[str]) -> TextTable:
    separator, notes = _separator(source)
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
    columns = {name: text_column(name, table.column(name)) for name in present}
    return TextTable(
        source.describe(), tuple(header), columns, table.num_rows, "line", header_lines + 1, notes
    )


def _separator(source: TableFile) -> tuple[str, tuple[str, ...]]:
    """The mark between columns, and a note where it was found out against the suffix.

    The suffix's own mark stands unless it makes a single column of the first lines or columns that
    differ in number, and another mark makes the same number of columns, two or more, of each.
    """
    usual = SEPARATORS[source.path.suffix.lower()]
    if source.separator is not None:
        return source.separator, ()
    widths = {mark: _width(source.path, mark) for mark in dict.fromkeys((usual, *";\t|,"))}
    best = max(widths, key=lambda mark: widths[mark])
    if widths[usual] > 1 or widths[best] < 2:
        return usual, ()
    shown = "\\t" if best == "\t" else best
    return best, (f'columns are separated by "{shown}" (found out; separator sets it)',)


def _width(path: Path, separator: str) -> int:
    """Number of columns that the mark makes of each of the first lines; 0 where they differ."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = islice(filter(None, csv.reader(file, delimiter=separator)), SNIFFED_LINES)
        widths = {len(line) for line in lines}
    return widths.pop() if len(widths) == 1 else 0


def _header(source: TableFile, separator: str) -> tuple[list[str], int]:
    """The column names, and the number of lines that they take at the top of the file."""
    if source.header is not None:
        return _distinct(source.path, list(source.header)), 0
    with source.path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter=separator)
        for names in reader:
            if names:
                return _distinct(source.path, [name.strip() for name in names]), reader.line_num
    raise DataError(f"Data file {source.path} holds blank lines only. Export the patients into it.")


def _read_parquet(source: TableFile, wanted: Collection[str]) -> TextTable:
    file = pyarrow.parquet.ParquetFile(source.path)
    header = _distinct(source.path, list(file.schema_arrow.names))
    present = [name for name in header if name in set(wanted)]
    table = file.read(columns=present)
    columns = {name: text_column(name, table.column(name)) for name in present}
    return TextTable(source.describe(), tuple(header), columns, file.metadata.num_rows, "row", 1)


def _distinct(path: Path, header: list[str]) -> list[str]:
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise DataError(
            f"Data file {path} has the column {', '.join(map(repr, twice))} more than once."
            " Rename or remove the others."
        )
    return header
