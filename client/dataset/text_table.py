"""A table as text, before the study defines the text's meaning."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from erosion.common.errors import DataError
from erosion.common.settings.names import canonical

MOST_CHARACTERS = 2**28  # of the distinct texts in one column: it holds documents, not values
LONG = 64  # characters


@dataclass(frozen=True, slots=True)
class TextColumn:
    """A column as its distinct values: there are far fewer of them than rows."""

    texts: tuple[str, ...]  # distinct, without spaces around; "" where missing
    codes: NDArray[np.int64]  # (n,) index into `texts`
    typed: frozenset[str] = frozenset()  # those of `texts` that are the source's own numbers,
    # independent of the site file's decimal and thousands

    @property
    def written(self) -> tuple[str, ...]:
        """The other `texts`, written by a person."""
        return tuple(text for text in self.texts if text not in self.typed)

    def take(self, rows: NDArray[np.int64]) -> "TextColumn":
        """Return the column for some rows, in that order."""
        if len(rows) == len(self.codes):
            return self
        kept, codes = np.unique(self.codes[rows], return_inverse=True)
        return TextColumn(tuple(self.texts[code] for code in kept.tolist()), codes, self.typed)

    def without(self, missing: Collection[str]) -> "TextColumn":
        """Return the column with "" for the texts that are `missing`, compared as codes."""
        texts = ["" if canonical(text) in missing else text for text in self.texts]
        kept = list(dict.fromkeys(texts))
        position = {text: index for index, text in enumerate(kept)}
        merged = np.array([position[text] for text in texts], dtype=np.int64)
        return TextColumn(tuple(kept), merged[self.codes], self.typed & frozenset(kept))


@dataclass(frozen=True, slots=True)
class TextTable:
    """The wanted columns of a hospital's table."""

    origin: str  # opens a message about the table, e.g. "Data file patients.csv"
    header: tuple[str, ...]  # all columns in the source
    columns: Mapping[str, TextColumn]  # the wanted ones that exist, by local name
    num_rows: int
    row_word: str  # people's name of a row: the "line" of a CSV, the "row" of a Parquet file
    first_row: int  # number of the first patient's line or row
    notes: tuple[str, ...] = ()  # what was noticed while reading it
    numbers: NDArray[np.int64] | None = None  # (n,) of the lines, where some are left out
    positions: NDArray[np.int64] | None = None  # (n,) of the rows among all in the file, from 0,
    # including those left out; None: none is
    row_hashes: NDArray[np.uint64] | None = None  # (n,) of every column of the row; None: unknown
    footer: int = 0  # last rows that seem to hold totals and not patients

    def without_last(self, num: int) -> "TextTable":
        """Return the table without its last rows."""
        if not num:
            return self
        rows = np.arange(self.num_rows - num)
        return replace(
            self,
            columns={name: column.take(rows) for name, column in self.columns.items()},
            num_rows=len(rows),
            numbers=None if self.numbers is None else self.numbers[rows],
            positions=None if self.positions is None else self.positions[rows],
            row_hashes=None if self.row_hashes is None else self.row_hashes[rows],
        )

    def place(self, index: int) -> str:
        """Return where the patient with this index (from 0) stands in the file."""
        number = self.first_row + index if self.numbers is None else self.numbers[index]
        return f"{self.row_word} {number}"


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
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    is_number = any(
        test(kind) for test in (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    )
    try:
        if pa.types.is_duration(column.type):
            raise pa.ArrowNotImplementedError
        column = column.cast(pa.large_string())
    except pa.ArrowNotImplementedError:
        raise pa.ArrowException(f"column {name!r} is of type {column.type}") from None
    # `fill_null` and `to_numpy` import pandas if it is installed: half a second.
    encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
    raw = [text or "" for text in encoded.dictionary.to_pylist()]
    texts = list(dict.fromkeys(text.strip() for text in raw))
    position = {text: index for index, text in enumerate(texts)}
    merged = np.array([position[text.strip()] for text in raw], dtype=np.int64)
    typed = frozenset(texts) if is_number else frozenset()
    return TextColumn(tuple(texts), merged[np.from_dlpack(encoded.indices)], typed)


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
                f"{self._origin}: column {self._name!r} holds more than {MOST_CHARACTERS:,}"
                " characters. Give values, and not documents."
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
            f"{self._origin}: column {self._name!r} holds {type(value).__name__}. Give numbers,"
            " text or dates."
        )


def shortened(text: str) -> str:
    """Return a text for comparing rows: the hash of a long one."""
    if len(text) <= LONG:
        return text
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()
