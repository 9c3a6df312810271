"""Numbers that people write for "not known", such as 999 and, where nothing is near it, 0."""

from collections.abc import Mapping
from statistics import quantiles

CODES = frozenset({-1, -8, -9, -88, -99, -888, -999, -9999, 88, 99, 888, 999, 9999, 99999})
FEWEST_MEASURED = 20  # different values of what is measured; of fewer, 0 may be one like the others
FAR = 2.0  # deviations: a measured 0 is nearer to the middle of the others
GAP = 1.0  # deviations from a 0 that was not measured to the next value, at least
QUARTILES_APART = 1.35  # deviations, of a normal distribution


def standing_apart(values: Mapping[str, float]) -> tuple[str, ...]:
    """The texts of such codes in a column of numbers (text -> value).

    They are negative where nothing else is, or farther from all other values than those are from
    one another.
    """
    codes = {text: value for text, value in values.items() if value in CODES}
    others = [value for text, value in values.items() if text not in codes]
    if not codes or not others:
        return ()
    low, high = min(others), max(others)
    return tuple(
        text
        for text, value in codes.items()
        if (value < 0 <= low) or value < low - (high - low) or value > high + (high - low)
    )


def to_be_asked_about(values: Mapping[str, float]) -> tuple[str, ...]:
    """The texts of a column of numbers (text -> value) that may stand for "not known"."""
    return (*standing_apart(values), *_zero_standing_apart(values))


def _zero_standing_apart(values: Mapping[str, float]) -> tuple[str, ...]:
    """The texts of 0 in a column of numbers (text -> value) whose other values lie far above it.

    As with a blood pressure or a cholesterol. A dose may well be 0, so it is only to be asked.
    """
    zeros = tuple(text for text, value in values.items() if value == 0)
    others = {value for value in values.values() if value != 0 and value not in CODES}
    if not zeros or len(others) < FEWEST_MEASURED:
        return ()
    first, middle, third = quantiles(others)
    deviation = (third - first) / QUARTILES_APART
    return zeros if min(others) >= GAP * deviation and middle >= FAR * deviation else ()
