"""How people write values, and the meaning of the texts in one column of a table."""

import json
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field

from erosion_common.settings.base import Settings
from erosion_common.settings.names import canonical
from erosion_common.support.text import some
from erosion_common.tasks.features import CategoryFeature, NumberFeature
from erosion_common.tasks.task import CodedColumn

DecimalMark = Literal[".", ","]

_WORDS = tomllib.loads(Path(__file__).with_name("missing_words.toml").read_text(encoding="utf-8"))
MISSING_MARKERS = frozenset(_WORDS["markers"])  # in lower case
MISSING_WORDS = frozenset(_WORDS["words"])  # the same; only ever proposed
OR_BELOW = frozenset(_WORDS["either"])  # those that may also mean a value below a limit
BEYOND_A_LIMIT = frozenset(_WORDS["beyond"])  # the same
DASHES = frozenset(["-", "--", "---", "–", "—", "−"])

_NUMBER = re.compile(r"[<>≤≥=~\s]*([+-]?\d[\d.,]*(?:[eE][+-]?\d+)?|[+-]?\.\d+)")
_COMMA = re.compile(r"[+-]?\d+,\d+(?:[eE][+-]?\d+)?")
BY_POINT = re.compile(r"[+-]?[1-9]\d{0,2}(?:\.\d{3})+")
GROUPED = (
    "such as 980 and 1.250 stand side by side, so the point seems to group thousands; write"
    ' thousands = "." under [data], or decimal = "." if it does not'
)
BOTH_MARKS = re.compile(r"[+-]?\d{1,3}(?:\.\d{3})+,\d+")  # 1.234,5
_HUNDREDS = re.compile(r"[+-]?[1-9]\d{2}")
_PLAIN = r"^[+-]?([0-9]{1,40}(\.[0-9]{0,40})?|\.[0-9]{1,40})([eE][+-]?[0-9]{1,3})?$"
_AT_ONCE = 4096  # texts
_GROUPED = re.compile(r"[+-]?[1-9]\d{0,2}(?:,\d{3})+")  # 1,234 may be a thousand or 1.234


def found_decimal(texts: Iterable[str]) -> DecimalMark:
    """Return the decimal mark of the distinct texts of a table's number columns.

    It is a comma where some have a comma and none a point; where every comma could also group
    thousands, nothing is assumed, and the point stays.
    """
    commas = False
    for text in texts:
        # From "<0,05" and "1,33 (haem.)" the number.
        found = _NUMBER.match(text)
        number = found[1] if found else ""
        if BOTH_MARKS.fullmatch(number):
            return ","
        if "." in number:
            return "."
        commas = commas or (
            _COMMA.fullmatch(number) is not None and _GROUPED.fullmatch(number) is None
        )
    return "," if commas else "."


def points_may_group(texts: Iterable[str]) -> bool:
    """Return whether there are points, and each could group thousands: 1.250 or 12.500.000."""
    pointed = [text for text in texts if "." in text]
    return bool(pointed) and all(map(BY_POINT.fullmatch, pointed))


def groups_by_point(texts: Iterable[str]) -> bool:
    """Return whether a column's points group thousands: it holds 980 and 1.250."""
    pointed = (text for text in texts if "." in text and text[-1:].isdecimal())
    if not all(map(BY_POINT.fullmatch, pointed)):  # of most columns the first does not
        return False
    numbers = [text for text in texts if text[-1:].isdecimal()]
    return (
        any("." in text and text.endswith("0") for text in numbers)
        and any(_HUNDREDS.fullmatch(text) for text in numbers)
        and all(len(text.lstrip("+-")) <= 3 for text in numbers if "." not in text)
    )


LARGEST_NUMBER = 1e30  # far beyond medicine, and sums of squares stay finite


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a value, and the remedy."""

    wrong: str
    remedy: str  # {key} is replaced by the study's column
    is_range: bool = False  # a number, but not one that the study allows


Parse = Callable[[str], float | Fault]  # NaN where the value is missing

Limit = Literal["half", "limit"]  # what a value below one is read as; above one, always
LIMIT = re.compile(r"([<>≤≥])=?\s*([.,]?\d[\d.,' \u00a0\u202f]*)")  # the limit of detection
_WITH_UNIT = re.compile(r"[+-]?\d[\d.,]*\s*[^\W\d_].*")
_TRUTH = {"true": "1", "false": "0"}  # as which Parquet and a database give them
_MAP = 'correct it, or map it under [data.values.{key}] ("" means missing)'
REFUSED = Fault(
    "missing values, which the study refuses",
    "fill them in or remove the patients (if they stand on other rows of the same patient,"
    ' [data.rows] joins them); the study could say missing = "drop" or "impute"',
)


class UnitChange(Settings):
    """From the data's unit to the study's: value x factor + offset."""

    factor: float = Field(default=1.0, description="What the data's value is multiplied by.")
    offset: float = Field(default=0.0, description="What is then added, in the study's unit.")


@dataclass(frozen=True, slots=True)
class NumberMarks:
    """How numbers are written."""

    decimal: str = "."
    thousands: str = ""  # between groups of three digits; "": none
    limit: Limit | None = None  # replaces "<0.5"; None: it is not a number

    def plain(self, text: str) -> str | None:
        """Return the text as `float` reads it; None where the marks are misplaced."""
        if self.thousands:
            # Spreadsheets put several kinds of spaces between groups.
            text = re.sub(r"[\u00a0\u2009\u202f]", " ", text)
            mark, decimal = re.escape(self.thousands), re.escape(self.decimal)
            grouped = rf"[+-]?[1-9]\d{{,2}}(?:{mark}\d{{3}})+(?:{decimal}\d*)?"
            if self.thousands in text:
                if not re.fullmatch(grouped, text):
                    return None
                text = text.replace(self.thousands, "")
        # float() alone would take 1_000 for 1000.
        return None if "_" in text else text.replace(self.decimal, ".")

    def number(self, text: str) -> float:
        """Return the number; NaN where the text is none. It may be infinite."""
        found = LIMIT.fullmatch(text) if self.limit else None
        is_halved = found is not None and self.limit == "half" and found[1] in "<≤"
        try:
            plain = self.plain(found[2] if found else text)
            return math.nan if plain is None else float(plain) / (2 if is_halved else 1)
        except ValueError:
            return math.nan

    def finite(self, text: str) -> float:
        """Return the number; NaN where the text is none, or an infinite one."""
        return value if math.isfinite(value := self.number(text)) else math.nan


PLAIN_MARKS = NumberMarks()


Column = NumberFeature | CategoryFeature | CodedColumn  # of a study


def column_parser(
    column: Column, marks: NumberMarks = PLAIN_MARKS, unit: UnitChange | None = None
) -> Parse:
    """Parse text to the number in the study's unit, or of the code, or a category's index."""
    if isinstance(column, NumberFeature):
        return _number_parser(column, marks, unit)
    if isinstance(column, CodedColumn):
        return _code_parser(column.codes, column.wrong)
    known = {category: float(index) for index, category in enumerate(column.categories)}
    return _code_parser(known, f"not among the categories {some(column.categories, most=20)}")


def toml_key(name: str) -> str:
    """Return a column's name as a key of the site file."""
    bare = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if bare else json.dumps(name, ensure_ascii=False)


def _code_parser(known: Mapping[str, float], wrong: str) -> Parse:
    truth = _truth_values(known)

    def parse(text: str) -> float | Fault:
        code = known.get(canonical(text))
        if code is None and truth:
            code = truth.get(canonical(text).casefold())
        if code is not None:  # before the markers: a study may have a category "NA"
            return code
        return math.nan if text.lower() in MISSING_MARKERS else Fault(wrong, _MAP)

    return parse


def _truth_values(known: Mapping[str, float]) -> Mapping[str, float]:
    """Map truth words to the study's codes, where it tells true from false, or 1 from 0."""
    words = {name.casefold(): code for name, code in known.items()}
    for no, yes in (("false", "true"), ("0", "1")):
        if no in words and yes in words:
            return {"false": words[no], "0": words[no], "true": words[yes], "1": words[yes]}
    return {}


def _number_parser(feature: NumberFeature, marks: NumberMarks, unit: UnitChange | None) -> Parse:
    def parse(text: str) -> float | Fault:
        if text.lower() in MISSING_MARKERS:
            return math.nan
        text = _TRUTH.get(text.lower(), text)
        if marks.decimal == "," and "." in text and marks.thousands != ".":
            # With a decimal comma, a point may group thousands: 1.234 could be either number.
            hint = 'if the point groups thousands, set thousands = "." under [data]; '
            return Fault("a point, where the decimal mark is a comma", hint + _MAP)
        value = marks.number(text)
        if math.isnan(value):
            return Fault("not a number", _hint(text, marks) + _MAP)
        if unit is not None:
            value = value * unit.factor + unit.offset
        if abs(value) > LARGEST_NUMBER:
            return Fault(f"beyond ±{LARGEST_NUMBER:g}", _MAP)
        if feature.range is not None and not feature.range[0] <= value <= feature.range[1]:
            low, high = feature.range
            wrong = f"outside {low:g} to {high:g}{f' {feature.unit}' if feature.unit else ''}"
            if unit is not None:
                wrong += " after the change of unit"
            remedy = (
                "check the unit ([data.units] changes it), or ask for a wider range in the study"
                f" where values are right; {_MAP}"
            )
            return Fault(wrong, remedy, is_range=True)
        if feature.whole and not value.is_integer():
            return Fault("not a whole number, and the outcome is a count", _MAP)
        return value

    return parse


def plain_numbers(
    numbers: NDArray[np.float64], feature: NumberFeature, unit: UnitChange | None = None
) -> NDArray[np.float64]:
    """Return what `column_parser` makes of plain numbers (n,), in one go; NaN for faulty ones."""
    values = numbers if unit is None else numbers * unit.factor + unit.offset
    low, high = feature.range or (-np.inf, np.inf)
    fit = (max(low, -LARGEST_NUMBER) <= values) & (values <= min(high, LARGEST_NUMBER))
    if feature.whole:
        fit &= values == np.rint(values)
    return values if fit.all() else np.where(fit, values, np.nan)


class ArrowTexts(Sequence[str]):
    """Distinct texts of Arrow: made only where they are looked at."""

    def __init__(self, values: pa.LargeStringArray) -> None:
        """`values`: without null."""
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), _AT_ONCE):
            yield from self._values[start : start + _AT_ONCE].to_pylist()

    def __contains__(self, text: object) -> bool:
        return text in self._known

    def __getitem__(self, index: Any) -> Any:
        return self._texts[index]

    def take(self, places: NDArray[np.int64]) -> "ArrowTexts":
        """Return some of them."""
        return ArrowTexts(taken(self._values, places))

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Bytes of each text: (n,)."""
        sizes: NDArray[np.int64] = np.diff(_ends(self._values))
        return sizes

    @cached_property
    def numbers(self) -> NDArray[np.float64]:
        """What the texts say as finite numbers, NaN for all others: (n,)."""
        return _read(self._values)

    @cached_property
    def _texts(self) -> tuple[str, ...]:
        return tuple(self)

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(self)


def taken(values: pa.Array, places: NDArray[np.int64]) -> pa.Array:
    """Return some values of Arrow."""
    buffers = [None, pa.py_buffer(np.ascontiguousarray(places, dtype=np.int64))]
    return values.take(pa.Int64Array.from_buffers(pa.int64(), len(places), buffers))


def _ends(texts: pa.LargeStringArray) -> NDArray[np.int64]:
    bounds = texts.buffers()[1]
    return np.frombuffer(bounds, dtype=np.int64)[texts.offset : texts.offset + len(texts) + 1]


def trimmed(texts: pa.LargeStringArray) -> tuple[pa.LargeStringArray, bool]:
    """Return texts without spaces around, "" for null, and whether any is another one now."""
    stripped = pc.utf8_trim_whitespace(texts)
    _, *buffers = stripped.buffers()  # without those that are null; `fill_null` imports pandas
    found = pa.LargeStringArray.from_buffers(len(stripped), *buffers, None, -1, stripped.offset)
    is_changed = texts.null_count or np.ptp(_ends(texts)[[0, -1]]) != np.ptp(_ends(found)[[0, -1]])
    return found, bool(is_changed)


def numbers_in(texts: Sequence[str]) -> NDArray[np.float64]:
    """Return the numbers of texts (n,), of ASCII digits with a point, in one go; else NaN."""
    if isinstance(texts, ArrowTexts):
        return texts.numbers
    # Not `pa.array` or `pa.scalar`: they import pandas where it is installed. A lone half of a
    # character becomes "?".
    encoded = [text.encode(errors="replace") for text in texts]
    ends, joined = np.cumsum([0, *map(len, encoded)]), b"".join(encoded)
    buffers = pa.py_buffer(ends), pa.py_buffer(joined)
    return _read(pa.LargeStringArray.from_buffers(len(texts), *buffers))


def _read(found: pa.LargeStringArray) -> NDArray[np.float64]:
    places = pc.indices_nonzero(pc.match_substring_regex(found, _PLAIN))
    values = np.full(len(found), np.nan)
    values[np.from_dlpack(places)] = np.from_dlpack(found.take(places).cast(pa.float64()))
    values[np.isinf(values)] = np.nan
    return values


def _hint(text: str, marks: NumberMarks) -> str:
    """Return what a text that is not a number may mean, with the remedy."""
    if LIMIT.fullmatch(text):
        return (
            "for a value beyond a limit the hospitals should agree on a number, half the limit or"
            ' the limit: {key} = "half" or "limit" under [data.limits]; '
        )
    if _WITH_UNIT.fullmatch(text):
        return "write the number without its unit, all in one unit; "
    if marks.decimal == "." and "," in text and not marks.thousands:
        return (
            'if the comma is the decimal mark, set decimal = "," under [data], if it groups'
            ' thousands, thousands = ","; '
        )
    return ""
