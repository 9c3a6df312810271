"""Makes a table of a source's columns: hashes of its rows, and possible totals in its last rows."""

import re
import tomllib
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from erosion.client.dataset.row_hashes import hashes_of_table
from erosion.client.dataset.text_table import TextColumn, TextTable

FILE = Path(__file__).with_name("total_words.toml")
LOOKED_AT = 10  # rows at the end
FEWEST_ROWS = 3  # of a table with a possible last row of totals
FEWEST_ABOVE = 5  # rows needed to compare their sum or mean with the last one
MOST_ROWS = 100_000  # of a table that somebody totals below it
LONGEST = 60  # characters of a label
BARE = 0.6  # of a row's cells have a value, at most
MOSTLY_NUMBERS = 0.9
FEWEST_MEANS = 2  # columns with a last number that is the mean of those above
_NUMBER = re.compile(r"[+-]?\d+([.,]\d+)?")
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
    footer_lines: int | None = 0,
) -> TextTable:
    """Return the table of `columns`, all that have text, of which it keeps the wanted ones.

    `footer_lines`: from the site file; where it has some, rows of totals are not searched for.
    None: the source has no such key.
    """
    kept = {name: columns[name] for name in header if name in columns and name in wanted}
    places = np.arange(1, num_rows + 1) if numbers is None else numbers
    num_totals = 0
    if not footer_lines and (found := _total_rows(columns, kept, num_rows)):
        first, last, named, are_at_end = found
        if are_at_end and footer_lines is not None:
            num_totals = num_rows - first
        remedy = f"write footer_lines = {num_totals} under [data]" if num_totals else "remove it"
        rows = f"{row_word} {places[first]} seems"
        if first < last:
            rows = f"{row_word}s {places[first]} to {places[last]} seem"
        note = f"{rows} to hold totals ({named!r}) and no patient: if so, {remedy}"
        notes = (*notes, note)
    return TextTable(
        origin,
        tuple(header),
        kept,
        num_rows,
        row_word,
        1,
        tuple(notes),
        numbers,
        positions,
        hashes_of_table(columns, num_rows),
        num_totals,
    )


def _total_rows(
    found: Mapping[str, TextColumn], wanted: Mapping[str, TextColumn], num: int
) -> tuple[int, int, str, bool] | None:
    """Return the first and last row of totals, a description, and whether nothing follows.

    `wanted`: the columns with numbers that may be sums. A label is a value that no other row has.
    """
    if num < FEWEST_ROWS:
        return None
    start = max(1, num - LOOKED_AT)
    rows = [
        {name: column.texts[column.codes[index]] for name, column in found.items()}
        for index in range(start, num)
    ]
    named: dict[int, str] = {}
    for index, row in enumerate(rows, start):
        if label := _label(row, found, max(0, num - LOOKED_AT)):
            named[index] = label
    if not named and num <= MOST_ROWS and (what := _computed(wanted)):
        named[num - 1] = what
    if not named:
        return None
    first, last = min(named), max(named)
    rest = [rows[index - start] for index in range(first + 1, num) if index not in named]
    is_end = all(_is_bare(row) or _is_count(row) for row in rest)
    return first, num - 1 if is_end else last, named[first], is_end


@cache
def _words() -> tuple[frozenset[str], frozenset[str]]:
    words = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return frozenset(map(_plain, words["statistics"])), frozenset(map(_plain, words["around"]))


def _plain(text: str) -> str:
    letters = unicodedata.normalize("NFKD", text.casefold())
    return "".join(c for c in letters if not unicodedata.combining(c))


def _is_bare(row: Mapping[str, str]) -> bool:
    return sum(map(bool, row.values())) <= BARE * len(row)


def _is_count(row: Mapping[str, str]) -> bool:
    return next(filter(None, row.values()), "").casefold() == "n"


def _label(row: Mapping[str, str], found: Mapping[str, TextColumn], end: int) -> str:
    """Return the label of a row of totals; "" where there is none.

    `end`: of the rows that certainly hold patients.
    """
    statistics, around = _words()
    for name, cell in row.items():
        words = re.findall(r"[^\W\d_]+", _plain(cell))
        if not cell or len(cell) > LONGEST:
            continue
        has_word = any(word in statistics for word in words) or bool(_COUNT.fullmatch(cell))
        is_label = has_word and all(word in statistics | around for word in words)
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
        texts = [text.replace(",", ".") for text in column.texts]
        values = np.array([float(t) if _NUMBER.fullmatch(t) else np.nan for t in texts])
        rows = values[column.codes]
        has_text = np.array([text != "" for text in texts])[column.codes]
        above, last = rows[:-1][~np.isnan(rows[:-1])], rows[-1]
        if np.isnan(last) or len(above) < max(FEWEST_ABOVE, MOSTLY_NUMBERS * has_text[:-1].sum()):
            continue
        num += 1
        decimals = len(texts[column.codes[-1]].partition(".")[2])
        close = 0.51 * 10.0**-decimals
        is_new = last > above.max() or last < above.min()
        sums += bool(is_new and abs(last - above.sum()) <= close + 1e-9 * abs(last))
        means += bool(abs(last - above.mean()) <= close and not (above == last).any())
    if sums and 2 * sums >= num:
        return "the sums of the rows above"
    if means >= FEWEST_MEANS and 2 * means >= num:
        return "the means of the rows above"
    return ""
