"""Statistics of the pages: means with their errors, and paired differences with intervals."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from statistics import fmean, stdev
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from scipy import stats

from experiments.page import table

Values = Mapping[str, Any]  # the figures of one split
Setting = TypeVar("Setting")

ROUNDED = 1e-6  # cells' figures, or less finely
LEVEL = 0.05  # of all intervals of a table together
# Splits share patients, so their differences vary less than those of other patients would.
MARKS = (
    "\\*: leaves out 0, so that further splits of these patients would hardly turn it round;"
    " \\*\\*: does so, too, with Nadeau and Bengio's (2003) variance for splits that share"
    " patients, which is about other patients, and rather too wide where most are tested."
)


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean, and its standard error; at least two values."""
    return fmean(values), stdev(values) / len(values) ** 0.5


def in_words(values: Sequence[float], form: str = ".3f") -> str:
    """`mean ± error`, of one value itself, "" of none; a sign in `form` is the mean's alone."""
    if len(values) < 2:
        return "".join(f"{value:{form}}" for value in values)
    mean, error = mean_and_error(values)
    return f"{mean:{form}} ± {error:{form.removeprefix('+')}}"


def wilson(share: float, count: int) -> tuple[float, float]:
    """Return the 95 % interval of a binomial share of `count` (Wilson 1927)."""
    found = stats.binomtest(round(share * count), count).proportion_ci(method="wilson")
    return float(found.low), float(found.high)


def one_or_range(counts: Iterable[int]) -> str:
    """ "44", or "44 to 45" where splits differ in it; at least one count."""
    found = sorted(counts)
    return " to ".join(str(count) for count in dict.fromkeys((found[0], found[-1])))


class Difference(NamedTuple):
    """A mean of paired differences, and its interval."""

    mean: float
    low: float
    high: float
    shared: float = inf  # half of the interval that allows for the patients that splits share

    @property
    def leaves_out_zero(self) -> bool:
        """Whether the interval does; not where splits differ by rounding alone."""
        return self.high - self.low > ROUNDED and (self.low > 0 or self.high < 0)

    @property
    def holds_for_others(self) -> bool:
        """Whether the interval that allows for shared patients leaves out 0, too."""
        return self.leaves_out_zero and abs(self.mean) > self.shared

    def text(self, form: str = "+.3f") -> str:
        """For a table; marked as `MARKS` says."""
        mark = " " + "\\*" * (1 + self.holds_for_others) if self.leaves_out_zero else ""
        return f"{self.mean:{form}} ({self.low:{form}} to {self.high:{form}}){mark}"


def paired_difference(
    ours: Sequence[float],
    theirs: Sequence[float],
    *,
    comparisons: int,
    test_share: float | None = None,
) -> Difference:
    """Ours minus theirs over the same splits, two or more.

    Student's interval at `LEVEL` for all `comparisons` together (Bonferroni). With the share of
    the patients that a split tests, also the wider one of Nadeau and Bengio, Inference for the
    Generalization Error, Machine Learning 52, 2003: variance times 1/n + tested/trained, not 1/n.
    """
    apart = np.array(ours) - np.array(theirs)
    quantile = stats.t.ppf(1 - LEVEL / 2 / comparisons, len(apart) - 1)
    half = quantile * stats.sem(apart)
    shared = inf
    if test_share is not None:
        variance = 1 / len(apart) + test_share / (1 - test_share)
        shared = float(quantile * apart.std(ddof=1) * variance**0.5)
    middle = float(apart.mean())
    return Difference(middle, float(middle - half), float(middle + half), shared)


def figures_of(splits: Iterable[Values], arm: str, metric: str) -> list[float]:
    """Return a metric of an arm, over the splits where it is defined."""
    return [float(v) for split in splits if (v := split[arm][metric]) is not None]


def errors_of(splits: Iterable[Values], arm: str) -> list[float]:
    """Return how many of a split's test patients an arm classifies wrongly."""
    return [(1 - split[arm]["accuracy"]) * split["patients"] for split in splits]


class Comparison(NamedTuple, Generic[Setting]):
    """One of our arms and another one, in one metric, over the splits of one setting."""

    setting: Setting
    ours: str
    other: str
    metric: str
    difference: Difference | None  # None: too few splits have both

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.difference is not None and self.difference.leaves_out_zero


def comparisons(
    found: Mapping[Setting, Sequence[Values]],
    ours: Sequence[str],
    others: Sequence[str],
    metrics: Sequence[str] = ("log_loss",),
    *,
    test_share: Callable[[Setting], float | None] = lambda _setting: None,
    together: int | None = None,
    fewest: int = 2,
) -> list[Comparison[Setting]]:
    """Ours against others by setting; the intervals hold for all of them, or so many, together."""
    count = together or len(found) * len(ours) * len(others) * len(metrics)

    def apart(setting: Setting, arm: str, other: str, metric: str) -> Difference | None:
        pairs = ((split[arm][metric], split[other][metric]) for split in found[setting])
        both = [pair for pair in pairs if None not in pair]
        if len(both) < fewest:
            return None
        share = test_share(setting)
        return paired_difference(*zip(*both, strict=True), comparisons=count, test_share=share)

    return [
        Comparison(setting, arm, other, metric, apart(setting, arm, other, metric))
        for setting in found
        for arm in ours
        for metric in metrics
        for other in others
    ]


def comparison_table(
    every: Iterable[Comparison[Setting]],
    row: Callable[[Comparison[Setting]], Sequence[str]],
    column: Callable[[Comparison[Setting]], str],
    last: Sequence[str] = (),
) -> str:
    """Return the differences, each in the row and the column of its names; and a last row."""
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for one in every:
        text = one.difference.text() if one.difference else ""
        rows.setdefault(tuple(row(one)), {})[column(one)] = text
    columns = list(dict.fromkeys(heading for entries in rows.values() for heading in entries))
    lines = [[*names, *(entries.get(c, "") for c in columns)] for names, entries in rows.items()]
    corner = [""] * len(next(iter(rows), ()))
    return table([*corner, *columns], [*lines, *([last] if last and lines else [])])


def intervals(of: str) -> str:
    """Return what the intervals of a table are; `of` says for how many together."""
    return (
        "Student's intervals of paired differences over splits, by Bonferroni,"
        f" {100 * (1 - LEVEL):g} % for {of} together."
    )


def about(every: Sequence[Comparison[Setting]], of: str = "") -> str:
    """Return what the intervals of these comparisons are, and how many are marked, and how."""
    found = [one.difference for one in every if one.difference]
    marked = sum(difference.leaves_out_zero for difference in found)
    others = sum(difference.holds_for_others for difference in found)
    return (
        f"{intervals(of or f'all {len(every)}')} {MARKS} Of {len(found)} differences {marked} are"
        f" marked, {others} of them twice."
    )
