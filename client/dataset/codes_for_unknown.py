"""Numbers that people write for "not known", such as 999."""

from collections.abc import Mapping

CODES = frozenset({-1, -8, -9, -88, -99, -888, -999, -9999, 88, 99, 888, 999, 9999, 99999})


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
