"""Tables as text: encoding and marks are found out; faults are told by line, never by row."""

import codecs
import csv
import re
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import TextIOWrapper
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray

from erosion.client.dataset.missing_words import MISSING_MARKERS, MISSING_WORDS
from erosion.client.dataset.row_hashes import hashes_of_table
from erosion.client.dataset.sources.file_content import CHUNK, FileContent
from erosion.client.dataset.sources.found_encoding import check_encoding, found_encoding
from erosion.client.dataset.text_table import TextColumn, TextTable, text_column
from erosion.client.dataset.total_rows import total_rows, totals_found
from erosion.common.errors import DataError

SNIFFED_LINES = 20  # from which the separator is found out
LARGEST_BLOCK = 1 << 30  # bytes
NO_PATIENTS = "Data file {path} has a header and no patients. Export them into it."
SHOWN_LINES = 5  # of those that are at fault
IF_TITLE = ": if it is a title, remove what stands above the columns' names"
FEWEST_ROWS = 3  # of a table whose first one may be of units
NUMERIC = re.compile(r"[<>≤≥~]?\s*[+-]?[.,]?\d")  # begins so
UNIT = re.compile(
    r"[\[(].*|[^/%°²]*[/%°²].*|years?|yrs?|jahre?|days?|tage?|kg|cm|mm|mm ?hg|bpm", re.I
)  # alone below a name
SEPARATOR_LINE = re.compile(r"sep=([\t !#-~])\s*", re.I)  # Excel's own, before the header


@dataclass(frozen=True, slots=True)
class Marks:
    """How a file of text is written; None: to be found out."""

    usual_separator: str  # by the file's suffix
    separator: str | None
    encoding: str | None
    header: tuple[str, ...] | None  # None: in the file
    footer_lines: int  # at the end, that are no patients


@dataclass(frozen=True, slots=True)
class _Layout:
    """What was found out."""

    encoding: str
    separator: str
    header: list[str]
    header_lines: int  # before the first patient
    notes: tuple[str, ...]


def read_delimited(
    path: FileContent, origin: str, marks: Marks, wanted: Collection[str]
) -> TextTable:
    """The wanted columns; `origin` opens messages. Raises DataError, ArrowException, csv.Error."""
    layout = _layout(path, marks)
    present = [name for name in layout.header if name in set(wanted)]
    looked_at = present or layout.header[:1]
    block_size, whole = _block_size(path, layout.encoding), 2 * path.num_bytes
    try:
        table, num_broken = _read(path, layout, looked_at, block_size)
    except pa.ArrowInvalid:  # a later line may be longer than the first ones
        if block_size >= min(whole, LARGEST_BLOCK):
            raise
        table, num_broken = _read(path, layout, looked_at, min(whole, LARGEST_BLOCK))
    footer_lines = marks.footer_lines
    if num_broken:
        footer_lines -= num_broken  # they are skipped already
        if _uneven_at_end(path, layout, marks.footer_lines) < num_broken:
            raise DataError(_uneven(path, layout))
    found = {name: table.column(name) for name in table.column_names}
    columns = {name: text_column(name, found[name]) for name in looked_at}
    lines = _lines(path, layout, columns, footer_lines)
    totals = None if marks.footer_lines else total_rows(found, columns, lines.kept)
    footer, said = totals_found(totals, lines.numbers[lines.kept], "line")
    return TextTable(
        origin,
        tuple(layout.header),
        {name: columns[name].take(lines.kept) for name in present},
        len(lines.kept),
        "line",
        layout.header_lines + 1,
        (*layout.notes, *lines.notes, *said),
        lines.numbers[lines.kept],
        None if lines.positions is None else lines.positions[lines.kept],
        hashes_of_table(found, table.num_rows)[lines.kept],
        footer,
    )


def _read(
    path: FileContent, layout: _Layout, looked_at: Collection[str], block_size: int
) -> tuple[pa.Table, int]:
    """The rows, those to be looked at as text, and how many were skipped for their width."""
    broken: list[int] = []  # numbers of columns

    def note_broken(row: pyarrow.csv.InvalidRow) -> str:
        broken.append(row.actual_columns)
        return "skip"

    try:
        return _parsed(path, layout, looked_at, block_size), 0
    except pa.ArrowInvalid:  # some row has another width, or is longer than a block
        table = _parsed(path, layout, looked_at, block_size, note_broken)
        return table, len(broken)


def _parsed(
    path: FileContent,
    layout: _Layout,
    looked_at: Collection[str],
    block_size: int,
    on_broken: Callable[[pyarrow.csv.InvalidRow], str] | None = None,
) -> pa.Table:
    """The file's rows; `on_broken` is asked about those of another width. Raises ArrowInvalid."""
    with path.open() as file:  # opened here, as pyarrow takes no name that is not UTF-8
        return pyarrow.csv.read_csv(
            file,
            read_options=pyarrow.csv.ReadOptions(
                column_names=layout.header,
                skip_rows=layout.header_lines,
                encoding=layout.encoding.removesuffix("-sig"),
                block_size=block_size,
                # A thread of pyarrow's that lets go of a function of ours while the program ends
                # aborts it.
                use_threads=on_broken is None,
            ),
            parse_options=pyarrow.csv.ParseOptions(
                delimiter=layout.separator, newlines_in_values=True, invalid_row_handler=on_broken
            ),
            convert_options=pyarrow.csv.ConvertOptions(
                # Of the others only a hash is wanted, whatever their bytes mean.
                column_types=dict.fromkeys(layout.header, pa.large_binary())
                | dict.fromkeys(looked_at, pa.large_string()),
            ),
        )


def _layout(path: FileContent, marks: Marks) -> _Layout:
    encoding, notes = _encoding(path, marks.encoding)
    with _opened(path, encoding) as file:
        first = SEPARATOR_LINE.fullmatch(file.readline())
    skipped = 1 if first else 0
    separator = marks.separator or (first[1] if first else None)
    if separator is None:
        separator, found = _separator(path, encoding, marks.usual_separator)
        notes += found
    if marks.header is not None:
        return _Layout(
            encoding, separator, distinct(path, list(marks.header)), skipped, tuple(notes)
        )
    with _opened(path, encoding) as file:
        for _ in range(skipped):
            file.readline()
        numbered = _numbered(path, file, separator, skipped)
        for _, lines, cells in numbered:
            if cells:
                names = [name.strip().removeprefix("\ufeff") for name in cells]
                below = _first_rows(numbered)
                names = _as_wide_as(names, [row for _, row in below])
                are_few = 2 * names.count("") > len(names)
                if not are_few and (strange := _second_header(len(names), below)):
                    raise DataError(f"Data file {path}: {strange}")
                if are_few:
                    notes.append(f"line {lines} names few of the {len(names)} columns{IF_TITLE}")
                if not below and next(file, None) is None:
                    raise DataError(NO_PATIENTS.format(path=path))
                return _Layout(encoding, separator, distinct(path, names), lines, tuple(notes))
    raise DataError(f"Data file {path} holds blank lines only. Export the patients into it.")


def _first_rows(numbered: Iterator[tuple[int, int, list[str]]]) -> list[tuple[int, list[str]]]:
    """The first rows below the header, blank lines left out, each with its line."""
    found: list[tuple[int, list[str]]] = []
    try:
        for first, _, cells in islice(numbered, SNIFFED_LINES):
            if cells:
                found.append((first, [cell.strip() for cell in cells]))
    except DataError:  # of a value that is longer than is looked at here
        pass
    return found


def _as_wide_as(names: list[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The header with as many columns as the rows, where they differ by separators at the end."""
    if rows and all(len(row) == len(names) + 1 and not row[-1] for row in rows):
        return [*names, ""]
    while rows and names and not names[-1] and all(len(row) < len(names) for row in rows):
        names = names[:-1]
    return names


def _second_header(width: int, rows: Sequence[tuple[int, list[str]]]) -> str:
    """What is said of a first row that holds units, or names once more; "" of any other."""
    if len(rows) < FEWEST_ROWS or any(len(row) != width for _, row in rows):
        return ""  # what is said of another width comes first
    (line, first), *others = rows
    numeric = []
    for index in range(len(first)):
        cells = [row[index] for _, row in others]
        known = [cell for cell in cells if cell.lower() not in MISSING_MARKERS]
        if known and all(map(NUMERIC.match, known)):
            numeric.append(first[index])
    words = [cell for cell in numeric if cell.lower() not in (*MISSING_MARKERS, *MISSING_WORDS)]
    is_alone = len(words) < 2 and not any(map(UNIT.fullmatch, words))
    if is_alone or any(map(NUMERIC.match, words)):
        return ""
    shown = ", ".join(map(repr, words[:SHOWN_LINES]))
    return (
        f"line {line} holds words ({shown}) where the lines below it hold numbers, so it seems to"
        " be of units, or a second line of names. Keep one line of names, and remove the other."
    )


def _opened(path: FileContent, encoding: str) -> TextIOWrapper:
    return TextIOWrapper(path.open(), encoding=encoding, newline="")


def _block_size(path: FileContent, encoding: str) -> int:
    """Bytes to read at a time: pyarrow needs the header and each row to fit."""
    with _opened(path, encoding) as file:
        longest = max((len(line.encode()) for line in islice(file, SNIFFED_LINES)), default=0)
    return max(CHUNK, min(2 * longest, LARGEST_BLOCK))


def _encoding(path: FileContent, given: str | None) -> tuple[str, list[str]]:
    """The file's, and a note where it is neither given nor UTF-8."""
    if given is None:
        encoding, note = found_encoding(path)
        return encoding, [note] if note else []
    check_encoding(path, given)
    name = codecs.lookup(given).name
    return ("utf-8-sig" if name == "utf-8" else name), []


def _separator(path: FileContent, encoding: str, usual: str) -> tuple[str, list[str]]:
    """The mark between columns, and a note where it was found out against the suffix.

    The suffix's own mark stands unless it makes a single column of the first lines or columns that
    differ in number, and another mark makes the same number of columns, two or more, of each.
    """
    widths = {m: _width(path, encoding, m) for m in dict.fromkeys((usual, *";\t|,"))}
    best = max(widths, key=lambda mark: widths[mark])
    if widths[usual] > 1 or widths[best] < 2:
        return usual, []
    shown = "\\t" if best == "\t" else best
    return best, [f'columns are separated by "{shown}" (found out; separator sets it)']


def _width(path: FileContent, encoding: str, separator: str) -> int:
    """Number of columns that the mark makes of each of the first lines.

    0 where they differ, or where a value would be longer than the csv module takes: a long line has
    none of this mark.
    """
    with _opened(path, encoding) as file:
        lines = islice(filter(None, csv.reader(file, delimiter=separator)), SNIFFED_LINES)
        try:
            header, *rows = [[cell.strip() for cell in line] for line in lines] or [[]]
        except csv.Error:
            return 0
    width = len(_as_wide_as(header, rows))
    return width if all(len(row) == width for row in rows) else 0


def distinct(path: object, names: list[str]) -> list[str]:
    """A spreadsheet's columns without a name get one that no study uses."""
    header = [name or f"(column {number})" for number, name in enumerate(names, start=1)]
    twice = sorted(name for name, times in Counter(header).items() if times > 1)
    if twice:
        raise DataError(
            f"Data file {path} has the column {', '.join(map(repr, twice))} more than once."
            " Rename or remove the others."
        )
    return header


@dataclass(frozen=True, slots=True)
class _Row:
    """A row below the header that is not a blank line."""

    position: int  # among all rows, blank lines included
    line: int  # its first
    width: int  # columns
    is_empty: bool  # no column has a value
    is_broken: bool  # a value goes on over several lines


def _rows(path: FileContent, layout: _Layout) -> Iterator[_Row]:
    with _opened(path, layout.encoding) as file:
        for _ in range(layout.header_lines):
            file.readline()
        rows = _numbered(path, file, layout.separator, layout.header_lines)
        for position, (first, last, cells) in enumerate(rows):
            if cells:
                empty = not any(cell.strip() for cell in cells)
                yield _Row(position, first, len(cells), empty, last > first)


def _numbered(
    path: FileContent, file: TextIOWrapper, separator: str, lines_before: int
) -> Iterator[tuple[int, int, list[str]]]:
    """Each row's first line, its last one, and its values.

    Raises DataError for a value that is longer than the csv module takes.
    """
    reader = csv.reader(file, delimiter=separator)
    while True:
        first = lines_before + reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error:
            raise DataError(
                f"Data file {path}: the row that begins on line {first} has a value of more than"
                f" {csv.field_size_limit()} characters. If that is not meant, a quotation mark is"
                " missing or too many there; else leave its column out of the export."
            ) from None
        if cells is None:
            return
        yield first, lines_before + reader.line_num, cells


def _uneven_at_end(path: FileContent, layout: _Layout, num_lines: int) -> int:
    """How many of the last lines have another number of columns than the header."""
    last = deque(_rows(path, layout), maxlen=num_lines)
    return sum(row.width != len(layout.header) for row in last)


def _uneven(path: FileContent, layout: _Layout) -> str:
    width = len(layout.header)
    rows = list(_rows(path, layout))
    lines = [row for row in rows if row.width != width]
    shown = ", ".join(f"line {row.line} has {row.width}" for row in lines[:SHOWN_LINES])
    more = f" and {len(lines) - SHOWN_LINES} more lines differ" * (len(lines) > SHOWN_LINES)
    mark = "\\t" if layout.separator == "\t" else layout.separator
    title = f" Line {layout.header_lines} is the odd one{IF_TITLE}." if _is_odd(width, rows) else ""
    return (
        f"Data file {path}: the header has {width} columns, but"
        f" {shown or 'some lines have others'}{more}.{title}"
        f' A value with "{mark}" in it must stand in quotes; if another mark separates columns, set'
        " separator under [data]; remove lines that are no patients."
    )


def _is_odd(width: int, rows: Sequence[_Row]) -> bool:
    """Whether most rows have one number of columns, and the header fewer."""
    widths = Counter(row.width for row in rows)
    usual, times = widths.most_common(1)[0] if widths else (width, 0)
    return width < usual and 2 * times > len(rows)


@dataclass(frozen=True, slots=True)
class _Lines:
    """What the lines below the header are."""

    numbers: NDArray[np.int64]  # (rows,) line of each row
    kept: NDArray[np.int64]  # indices of the rows that are patients
    positions: NDArray[np.int64] | None = None  # (rows,) of each row among all; None: every one is
    notes: tuple[str, ...] = ()


def _lines(
    path: FileContent, layout: _Layout, columns: Mapping[str, TextColumn], footer_lines: int
) -> _Lines:
    """Only where a line may be other than the next row, the file is read again, with care."""
    num_rows = len(next(iter(columns.values())).codes)
    bare = np.logical_and.reduce([_is_empty(column) for column in columns.values()])
    numbers = np.arange(num_rows) + layout.header_lines + 1
    kept = np.arange(num_rows)
    positions: NDArray[np.int64] | None = None
    notes: list[str] = []
    if bare.any() or _count_lines(path, layout.encoding) != layout.header_lines + num_rows:
        rows = [row for row in _rows(path, layout) if row.width == len(layout.header)]
        if len(rows) == num_rows:  # else the two readers differ on a strange quotation mark
            numbers = np.array([row.line for row in rows])
            positions = np.array([row.position for row in rows])
            kept = np.flatnonzero([not row.is_empty for row in rows])
        notes += _strange(rows, num_rows - len(kept))
    return _Lines(numbers, kept[: max(0, len(kept) - footer_lines)], positions, tuple(notes))


def _strange(rows: Sequence[_Row], num_empty: int) -> Iterator[str]:
    if num_empty:
        many = "1 line holds" if num_empty == 1 else f"{num_empty} lines hold"
        yield f"{many} no value at all, and {'is' if num_empty == 1 else 'are'} left out"
    broken = [row.line for row in rows if row.is_broken]
    if broken:
        times = "once" if len(broken) == 1 else f"{len(broken)} times, first"
        yield (
            f"a value goes on over several lines, {times} on line {broken[0]}: if that is not"
            " meant, a quotation mark is missing or too many there"
        )


def _is_empty(column: TextColumn) -> NDArray[np.bool_]:
    """Which rows have no value in a column: (n,)."""
    empty: NDArray[np.bool_] = np.array([text == "" for text in column.texts])[column.codes]
    return empty


def _count_lines(path: FileContent, encoding: str) -> int:
    """Lines of the file, whether or not the last one is ended."""
    wide = encoding.startswith(("utf-16", "utf-32"))
    count, last = 0, ""
    if wide:
        with _opened(path, encoding) as file:
            return sum(1 for _ in file)
    with path.open() as raw:
        while chunk := raw.read(CHUNK):
            count += chunk.count(b"\n")
            last = chunk[-1:].decode("latin-1")
    return count + (last not in ("", "\n"))
