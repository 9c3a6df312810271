"""Finds rows of totals and statistics at a table's end, which are no patients."""

import re
import tomllib
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from erosion.client.dataset.text_table import TextColumn

FILE = Path(__file__).with_name("total_words.toml")
LOOKED_AT = 10  # rows at the end
FEWEST_ROWS = 3  # of a table whose last one may be of totals
FEWEST_ABOVE = 5  # rows, to compare their sum or mean with the last one
MOST_ROWS = 100_000  # of a table that somebody sums up below it
LONGEST = 60  # characters of a label
BARE = 0.6  # of a row's cells have a value, at most
MOSTLY_NUMBERS = 0.9
FEWEST_MEANS = 2  # columns whose last number is the mean of those above
_NUMBER = re.compile(r"[+-]?\d+([.,]\d+)?")
_COUNT = re.compile(r"\(?n\s*[=:]\s*\d+\)?", re.I)


@dataclass(frozen=True, slots=True)
class TotalRows:
    """Rows that seem to hold totals, by their index among those that are kept."""

    first: int
    last: int
    named: str  # the word, or what its numbers are
    are_at_end: bool  # nothing but notes comes after them


def total_rows(
    found: Mapping[str, pa.ChunkedArray], columns: Mapping[str, TextColumn], kept: NDArray[np.int64]
) -> TotalRows | None:
    """The first to the last of such rows; `found`: every column, `columns`: some of them as text.

    `kept` (n,): indices of the rows that count. A label is no value that others have, too.
    """
    num = len(kept)
    if num < FEWEST_ROWS:
        return None
    start = max(1, num - LOOKED_AT)
    ends = {name: [_text(v) for v in _last(column, kept[start:])] for name, column in found.items()}
    rows = [dict(zip(ends, cells, strict=True)) for cells in zip(*ends.values(), strict=True)]
    named: dict[int, str] = {}
    for index, row in enumerate(rows, start):
        if label := _label(row, found, kept):
            named[index] = label
    if not named and num <= MOST_ROWS and (what := _computed(columns, kept)):
        named[num - 1] = what
    if not named:
        return None
    first, last = min(named), max(named)
    rest = [rows[index - start] for index in range(first + 1, num) if index not in named]
    is_end = all(_is_bare(row) or _is_count(row) for row in rest)
    return TotalRows(first, num - 1 if is_end else last, named[first], is_end)


def totals_found(
    totals: TotalRows | None,
    numbers: NDArray[np.int64],
    row_word: str,
    *,
    can_be_left_out: bool = True,
) -> tuple[int, tuple[str, ...]]:
    """How many rows at the end they are, and a note; `numbers` (n,) of the rows as people count."""
    if totals is None:
        return 0, ()
    first, last = numbers[totals.first], numbers[totals.last]
    many = f"{row_word}s {first} to {last}" if first < last else f"{row_word} {first}"
    seem = "seem to hold totals" if first < last else "seems to hold totals"
    num = len(numbers) - totals.first if totals.are_at_end and can_be_left_out else 0
    remedy = f"write footer_lines = {num} under [data]" if num else "remove the row"
    return num, (f"{many} {seem} ({totals.named!r}) and no patient: if so, {remedy}",)


@cache
def _words() -> tuple[frozenset[str], frozenset[str]]:
    words = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return frozenset(map(_plain, words["statistics"])), frozenset(map(_plain, words["around"]))


def _plain(text: str) -> str:
    letters = unicodedata.normalize("NFKD", text.casefold())
    return "".join(c for c in letters if not unicodedata.combining(c))


def _last(column: pa.ChunkedArray, rows: NDArray[np.int64]) -> list[object]:
    return [column[row].as_py() for row in rows.tolist()]


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace").strip()
    return "" if value is None else str(value).strip()


def _is_bare(row: Mapping[str, str]) -> bool:
    return sum(map(bool, row.values())) <= BARE * len(row)


def _is_count(row: Mapping[str, str]) -> bool:
    return next(filter(None, row.values()), "").casefold() == "n"


def _label(
    row: Mapping[str, str], found: Mapping[str, pa.ChunkedArray], kept: NDArray[np.int64]
) -> str:
    """The cell of a row that says that it holds totals; "" where none does."""
    statistics, around = _words()
    for name, cell in row.items():
        words = re.findall(r"[^\W\d_]+", _plain(cell))
        if not cell or len(cell) > LONGEST:
            continue
        has_word = any(word in statistics for word in words) or bool(_COUNT.fullmatch(cell))
        is_label = has_word and all(word in statistics | around for word in words)
        # "Total (all wards)" in a row without most values; but "Total knee" is an operation.
        may_be = _is_bare(row) and bool(words) and {words[0], words[-1]} & statistics
        if (is_label or may_be) and _is_single(found[name], cell, kept):
            return cell
    return ""


def _is_single(column: pa.ChunkedArray, cell: str, kept: NDArray[np.int64]) -> bool:
    """Whether no row but the last ones has this value."""
    above = column.slice(0, int(kept[max(0, len(kept) - LOOKED_AT)]))
    values = above.unique().to_pylist() if len(above) else []
    return not any(_text(value) == cell for value in values)


def _computed(columns: Mapping[str, TextColumn], kept: NDArray[np.int64]) -> str:
    """What the numbers of the last row are, of those above it; "" where they are their own."""
    sums = means = num = 0
    for column in columns.values():
        texts = [text.replace(",", ".") for text in column.texts]
        values = np.array([float(t) if _NUMBER.fullmatch(t) else np.nan for t in texts])
        rows = values[column.codes[kept]]
        has_text = np.array([text != "" for text in texts])[column.codes[kept]]
        above, last = rows[:-1][~np.isnan(rows[:-1])], rows[-1]
        if np.isnan(last) or len(above) < max(FEWEST_ABOVE, MOSTLY_NUMBERS * has_text[:-1].sum()):
            continue
        num += 1
        decimals = len(texts[column.codes[kept[-1]]].partition(".")[2])
        close = 0.51 * 10.0**-decimals
        is_new = last > above.max() or last < above.min()
        sums += bool(is_new and abs(last - above.sum()) <= close + 1e-9 * abs(last))
        means += bool(abs(last - above.mean()) <= close and not (above == last).any())
    if sums and 2 * sums >= num:
        return "the sums of the rows above"
    if means >= FEWEST_MEANS and 2 * means >= num:
        return "the means of the rows above"
    return ""
