"""Tables as text: encoding and marks are detected; faults are reported by line, never by row."""

import csv
import re
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from io import TextIOWrapper
from itertools import chain, islice

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv

from erosion_client.dataset.column_values import MISSING_MARKERS, MISSING_WORDS, ArrowTexts
from erosion_client.dataset.sources.file_content import CHUNK, FileContent, encoding_of
from erosion_client.dataset.text_table import (
    MOST_CHARACTERS,
    ColumnEncoder,
    TextColumn,
    TextTable,
    text_column,
    whole_table,
)
from erosion_common.errors import DataError
from erosion_common.settings.names import as_seen

SNIFFED_LINES = 20  # used to detect the separator
BATCH_ROWS = 5_000
END = "\0end of the file"  # repeated on a last line, which an unclosed value swallows
NO_PATIENTS = "Data file {path} has a header and no patients. Export them into it."
SHOWN_LINES = 5  # of the faulty ones
IF_TITLE = ": if it is a title, remove what stands above the columns' names"
FEWEST_ROWS = 3  # of a table with a possible first row of units
NUMERIC = re.compile(r"[<>≤≥~]?\s*[+-]?[.,]?\d")  # begins so
UNIT = re.compile(
    r"[\[(].*|[^/%°²]*[/%°²].*|years?|yrs?|jahre?|days?|tage?|kg|cm|mm|mm ?hg|bpm", re.I
)  # alone below a name
SEPARATOR_LINE = re.compile(r"sep=([\t !#-~])\s*", re.I)  # Excel's own, before the header


@dataclass(frozen=True, slots=True)
class Marks:
    """How a text file is written; None: to be detected."""

    usual_separator: str  # by the file's suffix
    separator: str | None
    encoding: str | None
    header: tuple[str, ...] | None  # None: in the file
    footer_lines: int  # at the end, without patients


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a file; a blank line has no cells."""

    first: int  # line, from 1
    last: int
    cells: Sequence[str | int | float]


def read_delimited(
    content: FileContent, origin: str, marks: Marks, wanted: Collection[str]
) -> TextTable:
    """Read the wanted columns of a text file; `origin` opens messages. Raises DataError."""
    encoding, notes = encoding_of(content, marks.encoding)
    with _opened(content, encoding) as file:
        first = SEPARATOR_LINE.fullmatch(file.readline())
    separator = marks.separator or (first[1] if first else None)
    if separator is None:
        separator, found = _separator(content, encoding, marks.usual_separator)
        notes += found
    with _opened(content, encoding) as file:
        if first:
            file.readline()
        rows = _rows(content, file, separator, 1 if first else 0)
        is_plain = encoding == "utf-8-sig" and not first and not marks.footer_lines
        at_once = partial(_at_once, content, separator) if is_plain else None
        return table_of_rows(content, origin, rows, marks, wanted, notes, separator, at_once)


def _at_once(
    content: FileContent, separator: str, header: Sequence[str], header_lines: int
) -> list[TextColumn] | None:
    """Return the columns of a plain file; None where a line is odd or a value spans several.

    Row by row such a file gives the same columns, or says what is wrong with it.
    """
    num_lines, last, num_quotes = -header_lines, b"", 0
    with content.open() as file:
        while chunk := file.read(CHUNK):
            chunk += file.read(1) if chunk.endswith(b"\r") else b""
            if b"\r" in chunk and chunk.count(b"\r") != chunk.count(b"\r\n"):
                return None
            num_quotes += chunk.count(b'"')
            num_lines, last = num_lines + chunk.count(b"\n"), chunk[-1:]
    num_lines += last != b"\n"
    names = [str(number) for number in range(len(header))]
    block = CHUNK * min(1 + len(header) // 100, 16)  # small enough for the processor's cache
    with content.open() as file:
        for _ in range(header_lines):
            file.readline()
        try:
            table = arrow_csv.read_csv(
                file,
                arrow_csv.ReadOptions(column_names=names, block_size=block),
                arrow_csv.ParseOptions(delimiter=separator, newlines_in_values=num_quotes > 0),
                arrow_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
            )
        except pa.ArrowException:
            return None
    # A blank line, or a quotation mark left open at the end, which would be an empty value.
    if table.num_rows != num_lines or num_quotes % 2:
        return None
    columns, is_empty = [], np.ones(num_lines, dtype=bool)
    for name in names:
        columns.append(column := text_column(name, table.column(name)))
        table = table.drop_columns(name)
        is_empty &= column.is_missing
        assert isinstance(column.texts, ArrowTexts)
        sizes = column.texts.sizes
        if sizes.max() > csv.field_size_limit() or sizes.sum() > MOST_CHARACTERS:
            return None
    return None if is_empty.any() else columns


def _opened(content: FileContent, encoding: str) -> TextIOWrapper:
    return TextIOWrapper(content.open(), encoding=encoding, newline="")


def _rows(
    content: FileContent, file: TextIOWrapper, separator: str, lines_before: int
) -> Iterator[Row]:
    """Yield rows. Raises DataError for a value that is too long or continues to the file's end."""
    reader = csv.reader(chain(file, [f"{END}{separator}{END}"]), delimiter=separator)
    while True:
        first = lines_before + reader.line_num + 1
        try:
            cells = next(reader)
        except csv.Error:
            raise DataError(
                f"the row that begins on line {first} has a value of more than"
                f" {csv.field_size_limit()} characters",
                where=f"Data file {content}",
                remedy="If that is not meant, a quotation mark is missing or too many there;"
                " else leave its column out of the export.",
            ) from None
        if cells == [END, END]:
            return
        if cells and cells[-1].endswith(END):
            raise DataError(
                f"a quotation mark in the row that begins on line {first} is not closed before the"
                " file ends",
                where=f"Data file {content}",
                remedy="Add the missing one, or remove this one.",
            )
        yield Row(first, lines_before + reader.line_num, cells)


def _separator(content: FileContent, encoding: str, usual: str) -> tuple[str, list[str]]:
    """Return the mark between columns, and a note where it differs from the suffix's.

    The suffix's own mark stands unless it divides the first lines into a single column or into
    varying numbers of columns, and another mark gives each the same number, two or more.
    """
    widths = {m: _width(content, encoding, m) for m in dict.fromkeys((usual, *";\t|,"))}
    best = max(widths, key=lambda mark: widths[mark])
    if widths[usual] > 1 or widths[best] < 2:
        return usual, []
    return best, [f'columns are separated by "{_shown(best)}" (detected; separator sets it)']


def _shown(separator: str) -> str:
    return "\\t" if separator == "\t" else separator


def _width(content: FileContent, encoding: str, separator: str) -> int:
    """Return the number of columns that the mark makes of each first line; 0 where they differ."""
    with _opened(content, encoding) as file:
        lines = islice(filter(None, csv.reader(file, delimiter=separator)), SNIFFED_LINES)
        try:
            header, *rows = [[cell.strip() for cell in line] for line in lines] or [[]]
        except csv.Error:  # of a value that is too long: the mark is not in the line
            return 0
    width = len(_as_wide_as(header, rows))
    return width if all(len(row) == width for row in rows) else 0


def table_of_rows(
    content: FileContent,
    origin: str,
    rows: Iterator[Row],
    marks: Marks,
    wanted: Collection[str],
    notes: Sequence[str] = (),
    separator: str = "",
    at_once: Callable[[Sequence[str], int], list[TextColumn] | None] | None = None,
) -> TextTable:
    """Read the columns of text rows, or, without a separator, of a sheet. Raises DataError.

    `at_once`: reads all lines after the given number, or returns None.
    """
    row_word = "line" if separator else "row"
    notes = list(notes)
    if marks.header is None:
        named = next((row for row in rows if row.cells), None)
        if named is None:
            raise DataError(
                f"Data file {content} holds blank lines only", remedy="Export the patients into it."
            )
        begin = list(islice(rows, SNIFFED_LINES))
        names, found = _names(content, named, [row for row in begin if row.cells], row_word)
        notes += found
    else:
        named, begin, names = Row(0, 0, ()), [], list(marks.header)
    header = distinct(content, names)
    if at_once is not None and (columns := at_once(header, named.last)):
        num_rows = len(columns[0].codes)
        return whole_table(
            origin,
            header,
            dict(zip(header, columns, strict=True)),
            wanted,
            num_rows,
            row_word=row_word,
            notes=notes,
            numbers=np.arange(named.last + 1, named.last + 1 + num_rows),
            footer_lines=0,
        )
    encoders = [ColumnEncoder(name, origin, is_wanted=name in wanted) for name in header]
    gathered = _Gathered(len(header), encoders)
    # Rows at the end without patients may have any width.
    held: deque[tuple[int, Row]] = deque()
    for position, row in enumerate(chain(begin, rows)):
        if not row.cells:
            continue
        if not any(str(cell).strip() for cell in row.cells):
            gathered.num_empty += 1
            continue
        held.append((position, row))
        if len(held) > marks.footer_lines:
            gathered.add(*held.popleft())
    gathered.flush()
    if gathered.uneven:
        raise DataError(gathered.problem(content, named.last, separator))
    return whole_table(
        origin,
        header,
        dict(zip(header, (encoder.column() for encoder in encoders), strict=True)),
        wanted,
        len(gathered.lines),
        row_word=row_word,
        notes=[*notes, *gathered.notes(row_word)],
        numbers=np.array(gathered.lines, dtype=np.int64),
        positions=np.array(gathered.positions, dtype=np.int64),
        footer_lines=marks.footer_lines,
    )


class _Gathered:
    """A table's rows, by columns, and what is odd about them."""

    def __init__(self, width: int, encoders: Sequence[ColumnEncoder]) -> None:
        self.lines: list[int] = []
        self.positions: list[int] = []  # among all rows, including blank lines
        self.uneven: list[Row] = []
        self.num_empty = 0  # rows in which no column has a value
        self._broken: list[int] = []  # lines of values that span several
        self._encoders, self._width = encoders, width
        self._widths: Counter[int] = Counter()
        self._batch: list[Sequence[str | int | float]] = []

    def add(self, position: int, row: Row) -> None:
        self._widths[len(row.cells)] += 1
        if row.last > row.first:
            self._broken.append(row.first)
        if len(row.cells) != self._width:
            self.uneven.append(Row(row.first, row.last, [""] * len(row.cells)))
            return
        self.lines.append(row.first)
        self.positions.append(position)
        self._batch.append(row.cells)
        if len(self._batch) >= BATCH_ROWS:
            self.flush()

    def flush(self) -> None:
        if self._batch:
            for encoder, values in zip(self._encoders, zip(*self._batch, strict=True), strict=True):
                encoder.add(values)
        self._batch = []

    def notes(self, row_word: str) -> Iterator[str]:
        if num := self.num_empty:
            hold, are = ("s hold", "are") if num > 1 else (" holds", "is")
            yield f"{num} {row_word}{hold} no value at all, and {are} left out"
        if self._broken:
            num = len(self._broken)
            times = "once" if num == 1 else f"{num} times, first"
            yield (
                f"a value spans several lines, {times} on line {self._broken[0]}: if that is"
                " not meant, a quotation mark is missing or too many there"
            )

    def problem(self, content: FileContent, header_line: int, separator: str) -> str:
        """Return the error for rows with another number of columns than the header."""
        shown = ", ".join(
            f"line {row.first} has {len(row.cells)}" for row in self.uneven[:SHOWN_LINES]
        )
        if len(self.uneven) > SHOWN_LINES:
            shown += f" and {len(self.uneven) - SHOWN_LINES} more lines differ"
        usual, times = self._widths.most_common(1)[0]
        is_title = self._width < usual and 2 * times > self._widths.total()
        title = f" Line {header_line} is the odd one{IF_TITLE}." if is_title else ""
        return (
            f"Data file {content}: the header has {self._width} columns, but {shown}.{title} A"
            f' value with "{_shown(separator)}" in it must stand in quotes; if another mark'
            " separates columns, set separator under [data]; remove lines that are no patients."
        )


def _names(
    content: FileContent, named: Row, below: Sequence[Row], row_word: str
) -> tuple[list[str], list[str]]:
    """Return the columns' names, and a note where they seem not to be names. Raises DataError."""
    rows = [[str(cell).strip() for cell in row.cells] for row in below]
    names = [as_seen(cell) for cell in named.cells]
    names = _as_wide_as(names, rows)
    if 2 * names.count("") > len(names):
        said = f"{row_word} {named.last} names few of the {len(names)} columns{IF_TITLE}"
        return names, [said]
    if words := _second_header(len(names), rows):
        raise DataError(
            f"{row_word} {below[0].first} holds words ({words}) where the {row_word}s below it"
            " hold numbers, so it seems to be of units, or a second line of names",
            where=f"Data file {content}",
            remedy="Keep one line of names, and remove the other.",
        )
    return names, []


def _as_wide_as(names: list[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the header with as many columns as the rows, if only separators at the end differ."""
    if rows and all(len(row) == len(names) + 1 and not row[-1] for row in rows):
        return [*names, ""]
    while rows and names and not names[-1] and all(len(row) < len(names) for row in rows):
        names = names[:-1]
    return names


def _second_header(width: int, rows: Sequence[Sequence[str]]) -> str:
    """Return the words of a first row of units or repeated names; "" for any other."""
    if len(rows) < FEWEST_ROWS or any(len(row) != width for row in rows):
        return ""  # another width is reported first
    first, *others = rows
    numeric = []
    for index, word in enumerate(first):
        known = [row[index] for row in others if row[index].lower() not in MISSING_MARKERS]
        if known and all(map(NUMERIC.match, known)):
            numeric.append(word)
    words = [cell for cell in numeric if cell.lower() not in (*MISSING_MARKERS, *MISSING_WORDS)]
    is_alone = len(words) < 2 and not any(map(UNIT.fullmatch, words))
    if is_alone or any(map(NUMERIC.match, words)):
        return ""
    return ", ".join(map(repr, words[:SHOWN_LINES]))


def distinct(content: object, names: Sequence[str]) -> list[str]:
    """Return the names as they are seen, and for unnamed columns names that no study uses."""
    header = [as_seen(name) or f"(column {number})" for number, name in enumerate(names, start=1)]
    twice = sorted(name for name, times in Counter(header).items() if times > 1)
    if twice:
        raise DataError(
            f"Data file {content} has the column {', '.join(map(repr, twice))} more than once",
            remedy="Rename or remove the others.",
        )
    return header
