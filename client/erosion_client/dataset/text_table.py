"""A table as text, before a study defines its meaning: columns, row hashes, rows of totals."""

import hashlib
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, time
from decimal import Decimal
from functools import cache
from itertools import filterfalse
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from erosion_client.dataset.column_values import (
    MISSING_MARKERS,
    MISSING_WORDS,
    ArrowTexts,
    numbers_in,
    taken,
    trimmed,
)
from erosion_common.errors import DataError
from erosion_common.settings.names import as_seen, canonical
from erosion_common.support.text import without_accents

MOST_CHARACTERS = 2**28  # of the distinct texts in one column: it holds documents, not values
LONG = 64  # characters of a text of which a row's hash needs no digest
MOST_EXACT = 2**53  # whole numbers up to here are exact in 64 bits


@dataclass
class TextColumn:
    """A column as its distinct values: there are far fewer of them than rows."""

    texts: Sequence[str]  # distinct, without spaces around; "" where missing
    codes: NDArray[np.int64]  # (n,) index into `texts`
    typed: Collection[str] = field(default_factory=frozenset)  # those of `texts` that are the
    # source's own numbers, independent of the site file's decimal and thousands; no default of the
    # class, which a `NumberColumn` would find before its own

    @property
    def written(self) -> Sequence[str]:
        """The other `texts`, written by a person."""
        if not self.typed:
            return self.texts
        return tuple(filterfalse(self.typed.__contains__, self.texts))

    @property
    def numbers(self) -> NDArray[np.float64]:
        """What the rows say as finite numbers, as `numbers_in` has it: (n,)."""
        return numbers_in(self.texts)[self.codes]

    def take(self, rows: NDArray[np.int64]) -> "TextColumn":
        """Return the column for some rows, in that order."""
        codes, is_kept = self.codes[rows], np.zeros(len(self.texts), dtype=bool)
        is_kept[codes] = True
        places, of = np.flatnonzero(is_kept), self.texts
        texts = of.take(places) if isinstance(of, ArrowTexts) else [of[i] for i in places.tolist()]
        return TextColumn(texts, (np.cumsum(is_kept) - 1)[codes], self.typed)

    def at(self, rows: NDArray[np.int64]) -> list[str]:
        """Return the text of each of some rows."""
        read = self.take(rows)
        return [read.texts[code] for code in read.codes.tolist()]

    @property
    def is_missing(self) -> NDArray[np.bool_]:
        """Which rows (n,) have no text."""
        if isinstance(self.texts, ArrowTexts):
            return np.equal(self.texts.sizes, 0)[self.codes]
        return np.array([not text for text in self.texts], dtype=bool)[self.codes]

    def without(self, missing: Collection[str]) -> "TextColumn":
        """Return the column with "" for the texts that are `missing`, compared as codes."""
        return self._as(["" if canonical(text) in missing else text for text in self.texts])

    def as_keys(self) -> "TextColumn":
        """Return the column with texts that are the same key as one."""
        if all(text.isascii() and "." not in text for text in self.texts):
            return self
        first = {"": ""}
        return self._as([first.setdefault(key_of(text), text) for text in self.texts])

    def _as(self, texts: Sequence[str]) -> "TextColumn":
        """Return the column with other texts, some of which may be equal."""
        kept = list(dict.fromkeys(texts))
        position = {text: index for index, text in enumerate(kept)}
        merged = np.array([position[text] for text in texts], dtype=np.int64)
        return TextColumn(tuple(kept), merged[self.codes], frozenset(self.typed) & frozenset(kept))


def key_of(text: str) -> str:
    """Return a form of a patient's key to compare: 1 and 1.0 are equal, 3.1 and 3.10 are not."""
    code = canonical(text)
    return as_seen(text) if "." in code else code


class NumberColumn(TextColumn):
    """Numbers of Arrow, all the source's own: texts and codes are made where they are asked for."""

    def __init__(self, values: pa.Array) -> None:
        """`values`: integers, floating or decimal ones; null where missing."""
        self._values = values

    def __getattr__(self, name: str) -> Any:
        if name not in ("texts", "codes", "typed"):
            raise AttributeError(name)
        # Its distinct values become text, not those of every row.
        encoded = self._values.dictionary_encode(null_encoding="encode")
        texts = ArrowTexts(trimmed(encoded.dictionary.cast(pa.large_string()))[0])
        super().__init__(texts, np.from_dlpack(encoded.indices).astype(np.int64), texts)
        return getattr(self, name)

    @property
    def written(self) -> Sequence[str]:
        """None: no person wrote them."""
        return ()

    @property
    def numbers(self) -> NDArray[np.float64]:
        """All that are finite, NaN for the others: (n,)."""
        kind = self._values.type
        if not (pa.types.is_integer(kind) or pa.types.is_float64(kind)):
            return super().numbers  # 0.1 in 32 bits is not 0.1
        values = self._values.cast(pa.float64(), safe=False)
        found = np.frombuffer(values.buffers()[1])[values.offset : values.offset + len(values)]
        is_number = np.isfinite(found) & ~self.is_missing
        return found if is_number.all() else np.where(is_number, found, np.nan)

    @property
    def exact(self) -> float:
        """Up to which every whole number differs from the next in this type."""
        if not pa.types.is_floating(self._values.type):
            return np.inf
        return float(2 ** (np.finfo(self._values.type.to_pandas_dtype()).nmant + 1))

    def as_keys(self) -> TextColumn:
        """Return itself: its texts are different numbers."""
        return self

    @property
    def is_missing(self) -> NDArray[np.bool_]:
        """Which rows (n,) are null."""
        return np.from_dlpack(self._values.is_null().cast(pa.int8())).view(np.bool_)

    def take(self, rows: NDArray[np.int64]) -> TextColumn:
        """Return the column for some rows, in that order."""
        return NumberColumn(taken(self._values, rows))


@dataclass(frozen=True, slots=True)
class TextTable:
    """The wanted columns of a hospital's table."""

    origin: str  # opens a message about the table, e.g. "Data file patients.csv"
    header: tuple[str, ...]  # all columns in the source
    columns: Mapping[str, TextColumn]  # the wanted ones that exist, by local name
    row_word: str  # people's name of a row: the "line" of a CSV, the "row" of a Parquet file
    numbers: NDArray[np.int64]  # (n,) of the lines or rows
    positions: NDArray[np.int64]  # (n,) of the rows among all in the file, from 0, including those
    # left out
    row_hashes: NDArray[np.uint64]  # (n,) of every column of the row
    notes: tuple[str, ...] = ()  # what was noticed while reading it
    footer: int = 0  # last rows that seem to hold totals and not patients

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(self.numbers)

    def without_last(self, num: int) -> "TextTable":
        """Return the table without its last rows."""
        if not num:
            return self
        rows = np.arange(self.num_rows - num)
        return replace(
            self,
            columns={name: column.take(rows) for name, column in self.columns.items()},
            numbers=self.numbers[rows],
            positions=self.positions[rows],
            row_hashes=self.row_hashes[rows],
        )

    def place(self, index: int) -> str:
        """Return where the patient with this index (from 0) stands in the file."""
        return f"{self.row_word} {self.numbers[index]}"


def text_columns(
    table: "pa.Table", wanted: Collection[str]
) -> tuple[tuple[str, ...], dict[str, TextColumn]]:
    """Return the header, and every column that has text. Raises ArrowException for a wanted one."""
    columns = {}
    for name in table.column_names:
        try:
            columns[name] = text_column(name, table.column(name))
        except pa.ArrowException:
            if name in wanted:
                raise
    return tuple(table.column_names), columns


def text_column(name: str, column: "pa.ChunkedArray") -> TextColumn:
    """Return any kind of column as text: 5 becomes "5", true "1", a gap "", and NaN "nan".

    Raises pyarrow's ArrowException for a kind that has no text, such as a list, or a duration,
    which would be a number of unnamed units.
    """
    no_text = pa.ArrowException(f"column {name!r} is of type {column.type}")
    if pa.types.is_duration(column.type):
        raise no_text
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    is_number = any(
        test(kind) for test in (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    )
    try:
        if pa.types.is_dictionary(column.type):
            column = column.cast(kind)
        # Its distinct values become text, not those of every row.
        values = column.combine_chunks()
        if is_number:
            values[:0].cast(pa.large_string())  # whether they have texts
            return NumberColumn(values)
        encoded = values.dictionary_encode(null_encoding="encode")
        codes = np.from_dlpack(encoded.indices).astype(np.int64)
        said = encoded.dictionary.cast(pa.large_string())
        if _is_binary(kind) and pc.any(pc.match_substring(said, "\0")).as_py():
            raise no_text  # numbers and bits as bytes, of which some would be spaces
        texts, is_changed = trimmed(said)
    except pa.ArrowNotImplementedError:
        raise no_text from None
    if is_changed:
        again = texts.dictionary_encode()
        texts, codes = again.dictionary, np.from_dlpack(again.indices).astype(np.int64)[codes]
    return TextColumn(ArrowTexts(texts), codes)


def _is_binary(kind: pa.DataType) -> bool:
    tests = pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary
    return any(test(kind) for test in tests)


class ColumnEncoder(dict[str, int]):
    """Builds a column from values, batch by batch: the code of each distinct text."""

    def __init__(self, name: str, origin: str, *, is_wanted: bool = True) -> None:
        """`origin` opens a message. Of a column that is not wanted, only the row hash is used."""
        super().__init__()
        self._name, self._origin, self._is_wanted = name, origin, is_wanted
        self._characters = 0
        self._codes: list[int] = []
        self._typed: set[str] = set()  # the source's own numbers

    def add(self, values: Sequence[Any]) -> None:
        """Add values: numbers, texts, dates, or None. Raises DataError for other types."""
        try:
            texts = list(map(str.strip, values))
        except TypeError:
            texts = [v.strip() if isinstance(v, str) else self._text(v) for v in values]
        self._codes.extend(map(self.__getitem__, texts))
        if self._characters > MOST_CHARACTERS:
            raise DataError(
                f"column {self._name!r} holds more than {MOST_CHARACTERS:,} characters",
                where=self._origin,
                remedy="Give values, and not documents.",
            )

    def column(self) -> TextColumn:
        """Return the column."""
        codes = np.array(self._codes, dtype=np.int64)
        return TextColumn(tuple(self), codes, frozenset(self._typed))

    def __missing__(self, text: str) -> int:
        kept = text if self._is_wanted else shortened(text)
        if kept not in self:
            self._characters += len(kept)
            self[kept] = len(self)
        return self[kept]

    def _text(self, value: object) -> str:
        if value is None:
            return ""
        if isinstance(value, int | float | Decimal):
            text = str(int(value)) if isinstance(value, bool) else str(value)
            self._typed.add(text)
            return text
        if isinstance(value, date | time):  # a datetime is a date
            return value.isoformat()
        if isinstance(value, UUID):
            return str(value)
        if not self._is_wanted:  # a memoryview's text would be its address
            return repr(bytes(value) if isinstance(value, memoryview) else value)
        raise DataError(
            f"column {self._name!r} holds {type(value).__name__}",
            where=self._origin,
            remedy="Give numbers, text or dates.",
        )


def shortened(text: str) -> str:
    """Return a text for comparing rows: the hash of a long one."""
    if len(text) <= LONG:
        return text
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()


RowHashes = NDArray[np.uint64]  # (n,)
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so that no column's hash is lost


def hashes_of_table(columns: Mapping[str, TextColumn], num_rows: int) -> RowHashes:
    """Return one hash per row of these columns, independent of their order and of decimals.

    A number is hashed by its value, so that 1 and 1.0 are equal, any other text by its characters.
    """
    total = np.zeros(num_rows, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for name, column in columns.items():
            total += _hashes_of_column(column, name) * _FACTOR
    return total


def _hashes_of_column(column: TextColumn, name: str) -> RowHashes:
    numbers = column.numbers
    hashes = mixed((numbers + 0.0).view(np.uint64) ^ np.uint64(hash_of_text(name)))
    others = np.flatnonzero(~(np.abs(numbers) < MOST_EXACT))
    if len(others):
        read = column.take(others)
        texts = (hash_of_text(f"{name}\0{shortened(text)}") for text in read.texts)
        hashes[others] = np.fromiter(texts, np.uint64, len(read.texts))[read.codes]
    return hashes


def mixed(values: RowHashes) -> RowHashes:
    """Return the hashes (n,) after splitmix64's finisher: every bit depends on every other."""
    with np.errstate(over="ignore"):
        found = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(found ^ (found >> np.uint64(31)), dtype=np.uint64)


def hashes_of_arrays(arrays: Iterable[tuple[str, NDArray[Any]]], num_rows: int) -> RowHashes:
    """Return one hash per index of these named arrays (n, ...), independent of their order."""
    total = np.zeros(num_rows, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for name, array in arrays:
            said = hash_of_text(name)
            # Several numbers per index are hashed as bytes; those of a text depend on the longest.
            is_raw = array.ndim > 1 and array.dtype.kind in "biuf"
            total += np.fromiter(
                (
                    hash_of_image(said, [np.ascontiguousarray(value).data])
                    if is_raw
                    else hash_of_text(f"{name}\0{value.tolist()}")
                    for value in array
                ),
                dtype=np.uint64,
                count=num_rows,
            )
    return total


def hash_of_image(said: int, pixels: Iterable[bytes | memoryview]) -> int:
    """Return 64 bits of an image's parts, contiguous pixels, and the hash of its metadata."""
    digest = hashlib.blake2b(said.to_bytes(8, "little"), digest_size=8)
    for part in pixels:
        digest.update(part)
    return int.from_bytes(digest.digest(), "little")


def hash_of_text(text: str) -> int:
    """Return 64 bits of a hash."""
    digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


FILE = Path(__file__).with_name("total_words.toml")
LOOKED_AT = 10  # rows at the end
FEWEST_ROWS = 3  # of a table with a possible last row of totals
FEWEST_KEYS = 10  # rows with a key, above a word in its column
FEWEST_ABOVE = 5  # rows needed to compare their sum or mean with the last one
MOST_ROWS = 100_000  # of a table that somebody totals below it
LONGEST = 60  # characters of a label
BARE = 0.6  # of a row's cells have a value, at most
MOSTLY_NUMBERS = 0.9
FEWEST_MEANS = 2  # columns with a last number that is the mean of those above
_COUNT = re.compile(r"\(?n\s*[=:]\s*\d+\)?", re.I)


def whole_table(
    origin: str,
    header: Sequence[str],
    columns: Mapping[str, TextColumn],
    wanted: Collection[str],
    num_rows: int,
    *,
    row_word: str = "row",
    notes: Sequence[str] = (),
    numbers: NDArray[np.int64] | None = None,
    positions: NDArray[np.int64] | None = None,
    footer_lines: int | None = None,
) -> TextTable:
    """Return the table of `columns`, all that have text, of which it keeps the wanted ones.

    `numbers`: (n,) of the lines, where some are left out, and `positions` of the rows among all.
    `footer_lines`: from the site file; where it has some, rows of totals are not searched for.
    None: the source has no such key.
    """
    kept = {name: columns[name] for name in header if name in columns and name in wanted}
    numbers = np.arange(1, num_rows + 1) if numbers is None else numbers
    num_totals = 0
    if not footer_lines and (found := _total_rows(columns, kept, num_rows)):
        first, last, named, are_at_end = found
        if are_at_end and footer_lines is not None:
            num_totals = num_rows - first
        remedy = f"write footer_lines = {num_totals} under [data]" if num_totals else "remove it"
        rows = f"{row_word} {numbers[first]} seems"
        if first < last:
            rows = f"{row_word}s {numbers[first]} to {numbers[last]} seem"
        note = f"{rows} to hold totals ({named!r}) and no patient: if so, {remedy}"
        notes = (*notes, note)
    return TextTable(
        origin,
        tuple(header),
        kept,
        row_word,
        numbers,
        np.arange(num_rows) if positions is None else positions,
        hashes_of_table(columns, num_rows),
        tuple(notes),
        num_totals,
    )


def _total_rows(
    found: Mapping[str, TextColumn], wanted: Mapping[str, TextColumn], num: int
) -> tuple[int, int, str, bool] | None:
    """Return the first and last row of totals, a description, and whether nothing follows."""
    if num < FEWEST_ROWS:
        return None
    start = max(1, num - LOOKED_AT)
    cells = [column.at(np.arange(start, num)) for column in found.values()]
    rows = [dict(zip(found, row, strict=True)) for row in zip(*cells, strict=True)]
    end = max(0, num - LOOKED_AT)
    named = {}
    for index, row in enumerate(rows, start):
        if label := _label(row, found, end):
            named[index] = label
    if num <= MOST_ROWS:
        named = _among_keys(next(iter(found.values())), cells[0], start) | named
        if not named and (what := _computed(wanted)):
            named[num - 1] = what
    if not named:
        return None
    first, last = min(named), max(named)
    what = named[first]
    while first > start and _label(rows[first - 1 - start], found, end, has_word=True):
        first -= 1
    rest = [rows[index - start] for index in range(first + 1, num) if index not in named]
    is_end = all(_is_bare(row) or _label(row, found, end, has_word=True) for row in rest)
    return first, num - 1 if is_end else last, what, is_end


def _among_keys(column: TextColumn, cells: Sequence[str], start: int) -> dict[int, str]:
    """Return the words in the first column's last cells, where above each has a key of its own."""
    if isinstance(column, NumberColumn) or start < FEWEST_KEYS:
        return {}
    keys = column.take(np.arange(start)).texts
    if len(keys) < MOSTLY_NUMBERS * start or not all(map(_has_digit, keys)):
        return {}
    return {
        index: cell
        for index, cell in enumerate(cells, start)
        if cell and not _has_digit(cell) and cell.lower() not in (*MISSING_MARKERS, *MISSING_WORDS)
    }


def _has_digit(text: str) -> bool:
    return any(map(str.isdigit, text))


@cache
def _words() -> tuple[frozenset[str], frozenset[str]]:
    words = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return frozenset(map(_plain, words["statistics"])), frozenset(map(_plain, words["around"]))


def _plain(text: str) -> str:
    return text.casefold() if text.isascii() else without_accents(text.casefold())


def _is_bare(row: Mapping[str, str]) -> bool:
    return sum(map(bool, row.values())) <= BARE * len(row)


def _label(
    row: Mapping[str, str], found: Mapping[str, TextColumn], end: int, *, has_word: bool = False
) -> str:
    """Return the label of a row of totals; "" where there is none.

    `has_word`: it lies next to such a row, so that a word such as "valid" is enough.
    """
    statistics, around = _words()
    for name, cell in row.items():
        if not cell or len(cell) > LONGEST:
            continue
        words = re.findall(r"[^\W\d_]+", _plain(cell))
        phrase = " ".join(words)
        is_known = bool(words) and all(word in statistics | around for word in words)
        is_near = has_word and not _has_digit(cell)  # no key, such as N12
        is_label = is_known and (is_near or any(word in statistics for word in words))
        is_label |= phrase in statistics or _COUNT.fullmatch(cell) is not None
        # "Total (all wards)" in a row without most values; but "Total knee" is an operation.
        may_be = _is_bare(row) and bool(words) and {words[0], words[-1]} & statistics
        column = found[name]
        if (is_label or may_be) and not (column.codes[:end] == column.texts.index(cell)).any():
            return cell
    return ""


def _computed(columns: Mapping[str, TextColumn]) -> str:
    """Return which function of the numbers above the last row holds; "" where none does."""
    sums = means = num = 0
    for column in columns.values():
        rows, num_texts = column.numbers, (~column.is_missing[:-1]).sum()
        if len(others := np.flatnonzero(np.isnan(rows))):
            read, rows = column.take(others), rows.copy()
            rows[others] = numbers_in([t.replace(",", ".") for t in read.texts])[read.codes]
        above, last = rows[:-1][~np.isnan(rows[:-1])], rows[-1]
        if np.isnan(last) or len(above) < max(FEWEST_ABOVE, MOSTLY_NUMBERS * num_texts):
            continue
        num += 1
        (text,) = column.at(np.array([len(rows) - 1]))
        decimals = len(text.replace(",", ".").partition(".")[2])
        close, total = 0.51 * 10.0**-decimals, above.sum()
        is_sum = abs(last - total) <= close + 1e-9 * abs(last)
        sums += bool(is_sum and (last > above.max() or last < above.min()))
        means += bool(abs(last - total / len(above)) <= close and not (above == last).any())
    if sums and 2 * sums >= num:
        return "the sums of the rows above"
    if means >= FEWEST_MEANS and 2 * means >= num:
        return "the means of the rows above"
    return ""
