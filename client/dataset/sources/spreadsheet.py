"""Tables in workbooks, through calamine: the cells of one sheet, typed as they are there."""

import csv
import re
import zipfile
from collections.abc import Collection
from dataclasses import replace
from datetime import date, datetime
from io import StringIO
from typing import IO, Any

from erosion.client.dataset.sources.delimited import Marks, read_delimited
from erosion.client.dataset.sources.file_content import CHUNK, FileContent
from erosion.client.dataset.text_table import TextTable
from erosion.common.errors import DataError
from erosion.common.support.software import install_command

WORKBOOKS = (".xlsx", ".xlsm", ".xlsb", ".xls", ".ods")
MOST_CELLS = 2**25  # of a sheet, the empty ones between two others included
MOST_BYTES = 2**31  # of a workbook, unpacked
WHOLE = 2**53  # numbers up to here are whole where they say so
PLACE = re.compile(rb'<c [^>]*?\br="([A-Z]{1,3})(\d{1,7})"')  # of a cell, in a sheet's XML


def read_sheet(
    content: FileContent, origin: str, sheet: str | None, marks: Marks, wanted: Collection[str]
) -> TextTable:
    """The wanted columns of a sheet, as `read_delimited` gives those of a file. Raises DataError.

    Cells with an error, such as #N/A, are missing, and dates are dates.
    """
    rows = _rows(content, origin, sheet)
    typed: list[set[str]] = [set() for _ in range(max(map(len, rows), default=0))]
    text = StringIO()
    writer = csv.writer(text)
    for row in rows:
        cells = [_text(value) for value in row]
        for numbers, value, cell in zip(typed, row, cells, strict=False):
            if isinstance(value, int | float):
                numbers.add(cell)
        writer.writerow(cells if any(cells) else [])
    packed = FileContent(content.path, ".csv", text.getvalue().encode())
    plain = replace(marks, separator=",", encoding="utf-8")
    table = read_delimited(packed, origin, plain, wanted)
    of_columns = dict(zip(table.header, typed, strict=False))
    columns = {
        name: replace(column, typed=frozenset(column.texts) & of_columns[name])
        for name, column in table.columns.items()
    }
    return replace(table, columns=columns, row_word="row")


def _rows(content: FileContent, origin: str, sheet: str | None) -> list[list[Any]]:
    try:
        from python_calamine import (
            CalamineError,
            CalamineWorkbook,
            PasswordError,
            SheetVisibleEnum,
        )
    except ModuleNotFoundError:
        raise DataError(
            f"{origin} is read with python-calamine, which is not installed. Run:"
            f" {install_command('formats')}"
        ) from None
    _check_bounds(content)
    try:
        with content.open() as file:
            book = CalamineWorkbook.from_filelike(file)
            names = [s.name for s in book.sheets_metadata if s.visible == SheetVisibleEnum.Visible]
            if sheet is not None and sheet not in book.sheet_names:
                raise DataError(
                    f"{origin} has no sheet {sheet!r}; it has {', '.join(map(repr, names))}."
                    " Correct sheet under [data]."
                )
            found = [sheet] if sheet is not None else names
            filled = {
                name: rows
                for name in found
                if (rows := book.get_sheet_by_name(name).to_python(skip_empty_area=False))
            }
    except PasswordError:
        raise DataError(f"{origin} is locked with a password. Save it without one.") from None
    except (CalamineError, OSError, ValueError) as problem:
        raise DataError(
            f"{origin} is no workbook that can be read ({problem}). Save it again as .xlsx; if it"
            " is text that was only called so, rename it to .csv."
        ) from None
    if len(filled) > 1:
        raise DataError(
            f"{origin} has the sheets {', '.join(map(repr, filled))}. Say which holds the patients:"
            " set sheet under [data] (--sheet where a draft is made)."
        )
    if not filled:
        raise DataError(f"{origin} has an empty sheet. Export the patients into it.")
    (rows,) = filled.values()
    return rows


def _check_bounds(content: FileContent) -> None:
    """Refuse what would fill the memory: also a single cell at the far corner of a sheet."""
    with content.open() as file:
        if not zipfile.is_zipfile(file):
            return
    with content.open() as file, zipfile.ZipFile(file) as archive:
        if sum(member.file_size for member in archive.infolist()) > MOST_BYTES:
            raise DataError(
                f"Data file {content} unpacks to more than {MOST_BYTES // 2**30} GiB. Export only"
                " the study's columns."
            )
        for member in archive.infolist():
            if re.fullmatch(r"xl/worksheets/[^/]+\.xml", member.filename):
                with archive.open(member) as sheet:
                    rows, columns = _extent(sheet)
                if rows * columns > MOST_CELLS:
                    raise DataError(
                        f"Data file {content} has a sheet of {rows:,} rows and {columns:,} columns,"
                        " more than are read. Remove the cells that lie far from the others, or"
                        " export it as CSV."
                    )


def _extent(sheet: IO[bytes]) -> tuple[int, int]:
    """The last row and column of a sheet that have a cell."""
    last_row = last_column = 0
    rest = b""
    while chunk := sheet.read(CHUNK):
        text = rest + chunk
        for letters, row in PLACE.findall(text):
            last_row = max(last_row, int(row))
            column = 0
            for letter in letters:
                column = 26 * column + letter - 64
            last_column = max(last_column, column)
        rest = text[-200:]
    return last_row, last_column


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < WHOLE else repr(value)
    if isinstance(value, datetime):
        is_day = (value.hour, value.minute, value.second) == (0, 0, 0)
        return value.date().isoformat() if is_day else value.isoformat(" ", "seconds")
    if isinstance(value, date):
        return value.isoformat()
    return " ".join(str(value).split())
