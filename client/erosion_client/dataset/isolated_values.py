"""Numbers far from all others in a column, by its quartiles: codes for "not known", and slips."""

import re
from collections.abc import Mapping
from statistics import quantiles

import numpy as np
from numpy.typing import NDArray

FEWEST_MEASURED = 20  # distinct measured values; among fewer, 0 may be ordinary
FAR = 2.0  # deviations: a measured 0 is nearer to the middle of the others
GAP = 1.0  # deviations from an unmeasured 0 to the next value, at least
QUARTILES_APART = 1.35  # deviations, of a normal distribution
FEWEST_ROWS = 20  # needed to judge a distribution
FEWEST_DISTINCT = 8
MOST_DISTINCT = 10_000  # of more, some represent all
MANY_ROWS = 60
LONG_TAILS = 2.6  # quartile ranges from the 5th to the 95th percentile; of a normal one 2.4
MOST_FAR = 0.1  # of the rows, with values that are not codes
MOST_NEGATIVE = 0.2  # of the rows; with more, a column has measured values below 0
MOST_NEGATIVE_CODES = 6  # distinct values
ONE_VALUE = 0.4  # of the rows: a value that stands apart from a distribution, mostly 0
FENCES = 3.0  # quartile ranges beyond a quartile
SKEWED = 1.5  # how many times as wide as the lower part the upper one is
SHARE_OF_LOGARITHM = 0.8  # of the distance from the middle, for a gap before a code in a skewed
# column; twice that before any other value, because real tails are long
_CODE = re.compile(r"(7{2,}|8{2,}|9{2,}|9+[5-8])")
_LEAST_NEGATIVE_CODE = -10


def is_code(value: float) -> bool:
    """Return whether people write this number for "not known": 77, 999, 9998, 99.9, -1."""
    if value < 0 and value == int(value) and value >= _LEAST_NEGATIVE_CODE:
        return True
    return _CODE.fullmatch(f"{abs(value):.10g}".replace(".", "")) is not None


def standing_apart(
    values: Mapping[str, float], counts: Mapping[str, int] | None = None
) -> tuple[str, ...]:
    """Return the texts of a number column (text -> value) that seem not to be measurements.

    They are codes farther from all other values than those are from one another, values far outside
    the distribution, and negative ones where hardly any other is. `counts`: rows of each text; else
    1.
    """
    times = counts or {}
    left = {text: (value, times.get(text, 1)) for text, value in _fewer(values).items()}
    found: set[str] = set()
    while apart := [*_codes(left), *_far(left)] or _negative(left):
        found.update(apart)
        left = {text: pair for text, pair in left.items() if text not in apart}
    return tuple(text for text in values if text in found)


def to_be_asked_about(
    values: Mapping[str, float], counts: Mapping[str, int] | None = None
) -> tuple[str, ...]:
    """Return the texts of a number column (text -> value) that may mean "not known"."""
    values = _fewer(values)
    apart = standing_apart(values, counts)
    others = {text: value for text, value in values.items() if text not in apart}
    return (*apart, *_zero_standing_apart(others))


def _fewer(values: Mapping[str, float]) -> Mapping[str, float]:
    """Return the least, the largest, and some between, of many values."""
    if len(values) <= MOST_DISTINCT:
        return values
    texts = sorted(values, key=values.__getitem__)
    end = MOST_DISTINCT // 10
    step = len(texts) // MOST_DISTINCT + 1
    return {t: values[t] for t in (*texts[:end], *texts[end:-end:step], *texts[-end:])}


_Counted = Mapping[str, tuple[float, int]]  # text -> value, rows


def _codes(values: _Counted) -> list[str]:
    """Return codes beyond all other values by more than their whole range."""
    codes = {text: value for text, (value, _) in values.items() if is_code(value)}
    if sum(value < 0 for value, _ in values.values()) > MOST_NEGATIVE_CODES // 2:
        codes = {text: value for text, value in codes.items() if abs(value) > -_LEAST_NEGATIVE_CODE}
    others = [value for text, (value, _) in values.items() if text not in codes]
    if not codes or not others:
        return []
    low, high = min(others), max(others)
    width = high - low
    return [text for text, value in codes.items() if not low - width <= value <= high + width]


def _negative(values: _Counted) -> list[str]:
    """Return a few whole numbers below 0, where hardly any value is."""
    below = {text: pair for text, pair in values.items() if pair[0] < 0}
    rows, all_rows = sum(n for _, n in below.values()), sum(n for _, n in values.values())
    are_codes = len(below) <= MOST_NEGATIVE_CODES and all(v.is_integer() for v, _ in below.values())
    return [*below] if are_codes and rows <= MOST_NEGATIVE * all_rows else []


def _far(values: _Counted) -> list[str]:
    """Return values outside the others' distribution, with a gap as wide as half of it."""
    x, rows = _sorted(values)
    if len(x) and rows.max() > ONE_VALUE * rows.sum():
        x, rows = np.delete(x, rows.argmax()), np.delete(rows, rows.argmax())
    if len(x) < FEWEST_DISTINCT or rows.sum() < FEWEST_ROWS:
        return []
    ends = {
        code: (-_first_far(-x[::-1], rows[::-1], code=code), _first_far(x, rows, code=code))
        for code in (False, True)
    }
    # A 0 is far from all others where no dose was given, and is asked about separately.
    return [
        text
        for text, (value, _) in values.items()
        if value and not ends[is_code(value)][0] < value < ends[is_code(value)][1]
    ]


def _sorted(values: _Counted) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    pairs = [pair for pair in values.values() if pair[1]]
    x, position = np.unique([value for value, _ in pairs], return_inverse=True)
    return x, np.bincount(position, [n for _, n in pairs], len(x)).astype(np.int64)


def _first_far(x: NDArray[np.float64], rows: NDArray[np.int64], *, code: bool) -> float:
    """Return the index from which sorted values (n,) lie far above those below."""
    share_from = np.cumsum(rows[::-1])[::-1] / rows.sum()
    end = max(FEWEST_DISTINCT, int((share_from > MOST_FAR).sum()))
    each = np.repeat(x[:end], rows[:end])
    tenth, quarter, middle, third, last_tenth = np.percentile(each, (10, 25, 50, 75, 90))
    value, last = x[end:], x[end - 1 : -1]
    is_far = value > third + FENCES * (third - quarter)
    # In long tails and few rows, the last value may be far from the one before it by chance.
    tails = np.percentile(np.repeat(x, rows), (5, 95))
    is_sure = len(each) >= MANY_ROWS and np.ptp(tails) < LONG_TAILS * (third - quarter)
    is_far &= value - last > (1 if is_sure else 2) * (last - middle)
    if not code or last_tenth - middle > SKEWED * (middle - tenth):
        # In a tail of that length, the next value lies a part of the logarithm further.
        start = 0.0 if x[0] >= 0 and middle > 0 else 1.5 * x[0] - 0.5 * middle
        done = np.log((last - start) / (middle - start))
        share = SHARE_OF_LOGARITHM * (1 if code else 2)
        is_far &= np.log((value - start) / (last - start)) > share * done
    return float(value[is_far][0]) if is_far.any() else np.inf


def _zero_standing_apart(values: Mapping[str, float]) -> tuple[str, ...]:
    """Return texts of 0 in a number column (text -> value) where other values lie far above it."""
    zeros = tuple(text for text, value in values.items() if value == 0)
    others = {value for value in values.values() if value != 0}
    if not zeros or len(others) < FEWEST_MEASURED:
        return ()
    first, middle, third = quantiles(others)
    deviation = (third - first) / QUARTILES_APART
    return zeros if min(others) >= GAP * deviation and middle >= FAR * deviation else ()


FEWEST_NUMBERED = 20  # values; fewer say nothing
LEAST_EXPECTED = 10.0  # expected pairs of equal values, for measurements between the ends
MOST_OF_EXPECTED = 0.1  # times these
LONG = 100_000  # without zeros at the end; longer whole numbers are not measured
NEARLY_ALL = 0.95  # of the values are distinct
ROUND = 0.5  # of the values end with 0
EXCEL_DAYS = (36_526, 49_710)  # since 1900, for 2000 to 2036
UNIX_SECONDS = (946_684_800, 2_082_758_400)  # since 1970, for the same years
LEAST_DATE = 5_000  # days since 1900, 1960 or 1970; for half of the dates, and for all seconds


def seem_assigned(values: NDArray[np.float64]) -> bool:
    """Return whether whole numbers (n,) differ from one another as measurements do not.

    Of the n (n - 1) / 2 pairs of measurements anywhere between the least and the largest, one is
    equal for each whole number between them, and more where some values are common. Numbers of six
    digits and more that are nearly all distinct are assigned, regardless of their values.
    """
    times = np.unique(values, return_counts=True)[1]
    num, num_distinct = len(values), len(times)
    if num_distinct <= FEWEST_NUMBERED or not (values == np.floor(values)).all():
        return False
    expected = num * (num - 1) / 2 / (values.max() - values.min() + 1)
    found = (times * (times - 1) / 2).sum()
    if expected >= LEAST_EXPECTED and found <= MOST_OF_EXPECTED * expected:
        return True
    is_long = values.min() >= LONG and (values % 10 == 0).mean() < ROUND
    return bool(is_long and num_distinct >= NEARLY_ALL * num)


def seem_counted_dates(values: NDArray[np.float64], *, is_called_date: bool) -> bool:
    """Return whether numbers (n,) are a spreadsheet's days, or seconds or milliseconds."""
    if is_called_date:
        return bool(np.median(np.abs(values)) >= LEAST_DATE)
    if len(np.unique(values)) <= FEWEST_NUMBERED or not (values == np.floor(values)).all():
        return False
    low, high = float(values.min()), float(values.max())
    milliseconds = (UNIX_SECONDS[0] * 1000, UNIX_SECONDS[1] * 1000)
    return any(
        first <= low and high <= last for first, last in (EXCEL_DAYS, UNIX_SECONDS, milliseconds)
    )
