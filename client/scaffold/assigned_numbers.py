"""Numbers that are no measurements, by their values: numbers of patients or rows, and dates."""

import numpy as np
from numpy.typing import NDArray

FEWEST_NUMBERED = 20  # values; fewer tell nothing
LEAST_EXPECTED = 10.0  # pairs of equal values, were they measured between the least and the largest
MOST_OF_EXPECTED = 0.1  # of those
LONG = 100_000  # a whole number without zeros at its end, and with so many digits, is not measured
NEARLY_ALL = 0.95  # of the values are different
ROUND = 0.5  # of the values end with 0
EXCEL_DAYS = (36_526, 49_710)  # since 1900, of 2000 to 2036
UNIX_SECONDS = (946_684_800, 2_082_758_400)  # since 1970, of the same years
LEAST_DATE = 5_000  # days since 1900, 1960 or 1970: of half of the dates, and of all seconds


def seem_assigned(values: NDArray[np.float64]) -> bool:
    """Whether whole numbers (n,) differ from one another as measurements do not.

    Of the n (n - 1) / 2 pairs of measurements anywhere between the least and the largest, one is
    equal for each whole number between them, and more where some values are common. Numbers of six
    digits and more that are nearly all different are assigned, wherever they lie.
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
    """Whether numbers (n,) are days as a spreadsheet counts them, or seconds or milliseconds."""
    if is_called_date:
        return bool(np.median(np.abs(values)) >= LEAST_DATE)
    if len(np.unique(values)) <= FEWEST_NUMBERED or not (values == np.floor(values)).all():
        return False
    low, high = float(values.min()), float(values.max())
    milliseconds = (UNIX_SECONDS[0] * 1000, UNIX_SECONDS[1] * 1000)
    return any(
        first <= low and high <= last for first, last in (EXCEL_DAYS, UNIX_SECONDS, milliseconds)
    )
