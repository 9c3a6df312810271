"""How far chance moves a figure of a table: a mean's standard error, a share's interval."""

from collections.abc import Sequence
from statistics import fmean, stdev

from scipy.stats import binomtest


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean, and its standard error; at least two values."""
    return fmean(values), stdev(values) / len(values) ** 0.5


def in_words(values: Sequence[float], form: str = ".3f") -> str:
    """`mean ± error`, at least two values; a sign in `form` is the mean's alone."""
    mean, error = mean_and_error(values)
    return f"{mean:{form}} ± {error:{form.removeprefix('+')}}"


def wilson(share: float, count: int) -> tuple[float, float]:
    """The 95 % interval of a binomial share of `count` (Wilson 1927)."""
    found = binomtest(round(share * count), count).proportion_ci(method="wilson")
    return float(found.low), float(found.high)
