"""Tables in files of any format."""

import json
import re
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, time
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Annotated, Any, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from pydantic import AfterValidator, Field, model_validator

from erosion_client.dataset.sources.data_source import (
    OnDisk,
    TableSource,
    is_there,
    lacks_package,
    not_there,
    unchanged,
)
from erosion_client.dataset.sources.delimited import (
    NO_PATIENTS,
    Marks,
    Row,
    distinct,
    read_delimited,
    table_of_rows,
)
from erosion_client.dataset.sources.file_content import (
    CHUNK,
    CUT_OFF,
    FileContent,
    content_of,
    encoding_of,
    reason_of,
    suffix_of,
)
from erosion_client.dataset.text_table import ColumnEncoder, TextTable, text_columns, whole_table
from erosion_common.errors import DataError
from erosion_common.support.text import some

# Not .xlsb: a cell far from the others crashes the program, and nothing warns of it.
WORKBOOKS = (".xlsx", ".xlsm", ".xls", ".ods")
STATISTICS = {
    ".sav": "read_sav",
    ".zsav": "read_sav",
    ".por": "read_por",
    ".dta": "read_dta",
    ".sas7bdat": "read_sas7bdat",
    ".xpt": "read_xport",
}  # pyreadstat's own, by suffix
JSON_LINES = (".jsonl", ".ndjson")
MOST_CELLS = 2**25  # of a table; of a sheet, including empty ones between two others
MOST_COLUMNS = 20_000
MOST_BYTES = 2**31  # of a workbook, unpacked
MOST_IN_32_BITS = 2**24  # numbers up to here are exact there
WHOLE = 2**53  # numbers up to here are whole where they say so
# In a sheet's XML, where some libraries write x:c for c: a cell's place, and formulas.
PLACE = re.compile(rb"<(?:\w+:)?c\s[^>]*?\br\s*=\s*[\"']([A-Za-z]{1,3})(\d{1,7})")
FORMULA = re.compile(rb"<(?:\w+:)?f[\s>/]")
WITHOUT_VALUE = re.compile(rb"</(?:\w+:)?f>\s*</(?:\w+:)?c>")
# Libraries ask so for what they write 0 or nothing for.
AT_OPENING = re.compile(rb"fullCalcOnLoad\s*=\s*[\"'](1|true)")
XPORT_RECORD = 80  # bytes; a SAS transport file is a multiple of these
MIDNIGHT = time()
# If damaged, these can crash the library that reads them or use up all memory, so another process
# tries first.
CRASHING = (*WORKBOOKS, ".sav", ".zsav")
MOST_MEMORY, MOST_SECONDS = 2**33, 600.0  # that this process may use, in bytes, and take
OUT_OF_MEMORY = 3
TRIAL = f"""
import io, resource, sys
suffix, most, encoding = sys.argv[1:]
if suffix in {WORKBOOKS}:
    from python_calamine import CalamineWorkbook
else:
    import pyreadstat
file = sys.stdin.buffer
file = file if file.seekable() else io.BytesIO(file.read())
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # which would hold patients
resource.setrlimit(resource.RLIMIT_AS, (int(most), int(most)))
try:
    if suffix in {WORKBOOKS}:
        book = CalamineWorkbook.from_filelike(file)
        for name in book.sheet_names:
            book.get_sheet_by_name(name).to_python(skip_empty_area=False)
    else:
        pyreadstat.read_sav(file, output_format="dict", encoding=encoding or None)
except MemoryError:
    sys.exit({OUT_OF_MEMORY})
"""


def read_sheet(
    content: FileContent, origin: str, sheet: str | None, marks: Marks, wanted: Collection[str]
) -> TextTable:
    """Read the wanted columns of a sheet, the only non-empty one unless named. Raises DataError."""
    cells = ([_plain(value) for value in row] for row in _sheet(content, origin, sheet))
    rows = (
        Row(number, number, row if any(cell != "" for cell in row) else ())
        for number, row in enumerate(cells, start=1)
    )
    return table_of_rows(content, origin, rows, marks, wanted)


def _has_beyond(values: Sequence[Any], most: float) -> bool:
    return any(isinstance(value, float) and abs(value) >= most for value in values)


def _plain(value: Any) -> Any:
    """Write whole numbers without a point, days without a time."""
    if isinstance(value, float) and value.is_integer() and abs(value) < WHOLE:
        return int(value)
    if isinstance(value, datetime) and value.time() == MIDNIGHT:
        return value.date()
    return value


def _sheet(content: FileContent, origin: str, sheet: str | None) -> list[list[Any]]:
    try:
        from python_calamine import CalamineWorkbook, PasswordError, SheetVisibleEnum
    except ModuleNotFoundError:
        raise lacks_package(origin, "python-calamine", "formats") from None
    try:
        _check_bounds(content, origin)
        _try_reading(content, origin)
        with content.open() as file:
            book = CalamineWorkbook.from_filelike(file)
            names = [s.name for s in book.sheets_metadata if s.visible == SheetVisibleEnum.Visible]
            if sheet is not None and sheet not in book.sheet_names:
                raise DataError(
                    f"{origin} has no sheet {sheet!r}; it has {', '.join(map(repr, names))}",
                    remedy="Correct sheet under [data].",
                )
            found = [sheet] if sheet is not None else names
            filled = {}
            for name in found:
                read = book.get_sheet_by_name(name)
                if rows := read.to_python(skip_empty_area=False):
                    filled[name] = rows, read.merged_cell_ranges or ()
    except (DataError, KeyboardInterrupt, SystemExit):
        raise
    except PasswordError:
        raise DataError(
            f"{origin} is locked with a password", remedy="Save it without one."
        ) from None
    except BaseException as problem:  # noqa: BLE001 - calamine's panics are not Exceptions
        raise DataError(
            f"{origin} is no workbook that can be read ({reason_of(problem)})",
            remedy="Save it again as .xlsx; if it is text that was only called so, rename it to"
            " .csv.",
        ) from None
    if len(filled) > 1:
        raise DataError(
            f"{origin} has the sheets {', '.join(map(repr, filled))}",
            remedy="Say which holds the patients: set sheet under [data] (--sheet where a draft"
            " is made).",
        )
    if not filled:
        raise DataError(f"{origin} has an empty sheet", remedy="Export the patients into it.")
    ((rows, merged),) = filled.values()
    for (first, column), (last, _) in sorted(merged):
        held = [cell for row in rows[first : first + 1] for cell in row[column : column + 1]]
        if first < last and held not in ([], [""]):
            raise DataError(
                f"{origin} has a cell merged over rows {first + 1} to {last + 1}, of which only the"
                " first has its value",
                remedy="Split such cells, and fill in every row.",
            )
    return rows


def _check_bounds(content: FileContent, origin: str) -> None:
    """Refuse what would fill the memory, including a single cell at the far corner of a sheet."""
    with content.open() as file:
        if not zipfile.is_zipfile(file):  # .xls, with few rows and columns by its format
            return
    with content.open() as file, zipfile.ZipFile(file) as archive:
        if sum(member.file_size for member in archive.infolist()) > MOST_BYTES:
            raise DataError(
                f"{origin} unpacks to more than {MOST_BYTES // 2**30} GiB",
                remedy="Export only the study's columns.",
            )
        book = "xl/workbook.xml"
        formula = WITHOUT_VALUE
        if book in archive.namelist():
            with archive.open(book) as opened:
                formula = FORMULA if AT_OPENING.search(opened.read(16 * CHUNK)) else formula
        for member in archive.infolist():
            if re.fullmatch(r"xl/worksheets/[^/]+\.xml", member.filename):
                with archive.open(member) as sheet:
                    *extent, is_uncomputed = _extent(sheet, formula)
                _check_cells(origin, *extent)
                if is_uncomputed:
                    raise DataError(
                        f"{origin} has formulas that no spreadsheet program has computed yet",
                        remedy="Open it in one, and save it there.",
                    )


def _try_reading(content: FileContent, origin: str, encoding: str | None = None) -> None:
    """Refuse a file that would end this program; other faults show when it is read here."""
    if content.suffix not in CRASHING:
        return
    code = [sys.executable, "-I", "-c", TRIAL, content.suffix, str(MOST_MEMORY), encoding or ""]
    with content.open() as file:
        place: Any = {"stdin": file} if content.unpacked is None else {"input": content.unpacked}
        try:
            tried = subprocess.run(
                code, **place, capture_output=True, timeout=MOST_SECONDS, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            tried = OUT_OF_MEMORY
    if tried < 0 or tried == OUT_OF_MEMORY:
        raise DataError(
            f"{origin} cannot be read: the library that reads it crashed, or would need more than"
            f" {MOST_MEMORY // 2**30} GiB or {MOST_SECONDS / 60:.0f} minutes",
            remedy="Save it again; if that does not help, as .csv.",
        )


def _check_cells(origin: str, num_rows: int, num_columns: int) -> None:
    if num_rows * num_columns > MOST_CELLS or num_columns > MOST_COLUMNS:
        raise DataError(
            f"{origin} has {num_rows:,} rows and {num_columns:,} columns, more than are read",
            remedy="Export only the study's columns, and remove cells that lie far from the"
            " others.",
        )


def _extent(sheet: IO[bytes], formula: re.Pattern[bytes]) -> tuple[int, int, bool]:
    """Return a sheet's last row and column that have a cell, and whether it has such a formula."""
    last_row, last_column, has_formula = 0, 0, False
    rest = b""
    while chunk := sheet.read(CHUNK):
        text = rest + chunk
        has_formula = has_formula or formula.search(text) is not None
        for letters, row in PLACE.findall(text):
            last_row = max(last_row, int(row))
            column = 0
            for letter in letters.upper():
                column = 26 * column + letter - 64
            last_column = max(last_column, column)
        rest = text[-200:]
    return last_row, last_column, has_formula


def read_statistics(
    content: FileContent, origin: str, encoding: str | None, labels: bool, wanted: Collection[str]
) -> TextTable:
    """Read the wanted columns of a file of SPSS, SAS or Stata. Raises DataError."""
    try:
        import pyreadstat
    except ModuleNotFoundError:
        raise lacks_package(origin, "pyreadstat", "formats") from None
    if content.suffix == ".xpt" and content.num_bytes % XPORT_RECORD:
        raise DataError(f"{origin} ends in the middle of a record, so it {CUT_OFF}")
    read = getattr(pyreadstat, STATISTICS[content.suffix])
    given = {} if encoding is None else {"encoding": encoding}
    _try_reading(content, origin, encoding)
    try:
        with content.open() as file:
            _, said = read(file, metadataonly=True, **given)
        _check_cells(origin, said.number_rows or 0, said.number_columns)
        with content.open() as file:
            found, said = read(file, output_format="dict", **given)
        if None in found:  # pyreadstat's for a damaged one
            raise ValueError("a column has no name")
    except DataError:
        raise
    except Exception as problem:  # noqa: BLE001 - a damaged file may raise anything
        raise DataError(
            f"{origin} cannot be read: {reason_of(problem)}",
            remedy="Save it again; if letters are meant, set encoding under [data].",
        ) from None
    meant = {name: said.variable_value_labels.get(name, {}) for name in found}
    labelled = [name for name, of_values in meant.items() if of_values]
    notes = []
    if labelled and not labels:
        read = 'read as codes, and have labels (value_labels = "labels" reads those)'
        notes = [f"{some(labelled)}: {read}"]
    short = [n for n, kind in said.readstat_variable_types.items() if kind == "float"]
    if rounded := [n for n in short if n in wanted and _has_beyond(found[n], MOST_IN_32_BITS)]:
        why = "stored in 32 bits, which rounds long whole numbers; not fit for a patient's key"
        notes.append(f"{some(rounded)}: {why}")
    for name in short:  # 0.1 in 32 bits is not 0.1
        found[name] = [
            float(str(np.float32(v))) if isinstance(v, float) else v for v in found[name]
        ]
    columns = {
        name: [_plain(meant[name].get(value, value) if labels else value) for value in column]
        for name, column in found.items()
    }
    return _table(content, origin, columns, wanted, notes)


def read_json_lines(
    content: FileContent, origin: str, encoding: str | None, wanted: Collection[str]
) -> TextTable:
    """Read the wanted columns of a file with an object on each line. Raises DataError."""
    encoding, notes = encoding_of(content, encoding)
    rows: list[dict[str, Any]] = []
    lines: list[int] = []
    names: dict[str, None] = {}
    with TextIOWrapper(content.open(), encoding=encoding) as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            cells = [*_flat(_object(line, number, origin))]
            rows.append(dict(cells))
            if len(rows[-1]) < len(cells):
                (name, _), *_ = Counter(name for name, _ in cells).most_common(1)
                raise DataError(
                    f"line {number} has {name!r} more than once",
                    where=origin,
                    remedy="Leave one value of each column on a line.",
                )
            lines.append(number)
            names.update(dict.fromkeys(rows[-1]))
            _check_cells(origin, len(rows), len(names))
    kinds = {row.get("resourceType") for row in rows} - {None}
    if kinds - {"Patient"}:
        raise DataError(
            f"{origin} holds FHIR's {', '.join(sorted(map(str, kinds)))}",
            remedy="FHIR's resources are not the rows of a table: flatten them into one row for"
            " each patient first (SQL on FHIR's views, Pathling), or query them with"
            " DuckDB.",
        )
    if kinds:
        notes = [*notes, "FHIR's Patient, a row each; what lies deeper is called by its path"]
    columns = {name: [row.get(name) for row in rows] for name in names}
    return _table(content, origin, columns, wanted, notes, lines)


def _object(line: str, number: int, origin: str) -> tuple[tuple[str, Any], ...]:
    """Return a line's object, and each in it, as pairs: a dictionary would hide a second one."""
    try:
        found = json.loads(line, object_pairs_hook=tuple)
    except (ValueError, RecursionError):
        if not line.endswith("\n") and line.lstrip().startswith("{"):
            raise DataError(
                f"{origin} ends in the middle of line {number}, so it {CUT_OFF}"
            ) from None
        found = None
    if not isinstance(found, tuple):
        raise DataError(
            f"line {number} is no JSON object",
            where=origin,
            remedy='Give one object on each line, such as {"age": 63, "sex": "f"}.',
        )
    return found


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, tuple | list):
        for key, one in value if isinstance(value, tuple) else enumerate(value):
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
    encoders = [ColumnEncoder(name, origin, is_wanted=name in wanted) for name in header]
    for encoder, column in zip(encoders, values.values(), strict=True):
        encoder.add(column)
    return whole_table(
        origin,
        header,
        dict(zip(header, (encoder.column() for encoder in encoders), strict=True)),
        wanted,
        max(map(len, values.values()), default=0),
        row_word="row" if lines is None else "line",
        notes=notes,
        numbers=None if lines is None else np.array(lines),
        footer_lines=0,
    )


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
        default=None, min_length=1, description="Column names, for a file without a header."
    )
    encoding: Annotated[str, AfterValidator(_checked_encoding)] | None = Field(
        default=None,
        description='Encoding of the text, such as `"cp1252"`. Left out: UTF-8, or UTF-16 or '
        "UTF-32 with its mark.",
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
        with unchanged(self, self.revision):
            return _read_table(self, wanted)


def _read_table(source: TableFile, wanted: Collection[str]) -> TextTable:
    path = source.path
    if not is_there(path):
        raise not_there("data file", path)
    if path.is_dir():
        raise DataError(
            f"Data file {path} is a folder, but the study wants a table: give a file",
            remedy='If it holds tables, write source = "duckdb" under [data], if images, source'
            ' = "images".',
        )
    if not path.is_file():  # a pipe or a device, which may never end
        raise DataError(
            f"Data file {path} is no ordinary file", remedy="Give a file of the patients."
        )
    if suffix_of(path) not in (*SUFFIXES, ".zip"):
        raise _unknown_format(path, suffix_of(path))
    content = content_of(path)
    if content.suffix not in SUFFIXES:
        raise _unknown_format(path, content.suffix)
    for key, suffixes in ONLY_OF.items():
        if key in source.model_fields_set and content.suffix not in suffixes:
            raise DataError(
                f"{key} is of {', '.join(suffixes)} alone, and this is a table in {content.suffix}",
                where=f"Data file {path}",
                remedy=f"Remove {key} under [data].",
            )
    try:
        table = _read(source, content, set(wanted))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as problem:
        raise DataError(
            f"Data file {path} cannot be read: {reason_of(problem)}",
            remedy="Let this account read it, or export it again, its columns as numbers, text or"
            " dates.",
        ) from None
    if table.num_rows == 0:
        raise DataError(NO_PATIENTS.format(path=path))
    return table


def _unknown_format(path: Path, suffix: str) -> DataError:
    return DataError(
        f"a table in {suffix or 'a file without suffix'} cannot be read; export it as one of"
        f" {', '.join(SUFFIXES)}, also packed (.csv.gz, .zip).",
        where=f"Data file {path}",
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
    with content.open() as opened:
        file = pyarrow.parquet.ParquetFile(opened, page_checksum_verification=True)
        distinct(content, file.schema_arrow.names)
        found = file.read(use_threads=False)  # with threads it costs more of the processor
    header, columns = text_columns(found, wanted)
    return whole_table(origin, header, columns, wanted, found.num_rows, footer_lines=footer_lines)
