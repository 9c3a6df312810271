"""A mean with its standard error, for the tables."""

from collections.abc import Sequence
from statistics import fmean, stdev


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean, and its standard error; at least two values."""
    return fmean(values), stdev(values) / len(values) ** 0.5


def in_words(values: Sequence[float], form: str = ".3f") -> str:
    """`mean ± error`, at least two values; a sign in `form` is the mean's alone."""
    mean, error = mean_and_error(values)
    return f"{mean:{form}} ± {error:{form.removeprefix('+')}}"
