"""Intervals of paired differences over splits that hold all together."""

from collections.abc import Iterable, Sequence
from math import inf
from typing import NamedTuple

import numpy as np
from scipy import stats

ROUNDED = 1e-6  # cells' figures, or less finely
LEVEL = 0.05  # of all intervals of a table together
INTERVALS = "Student's intervals of paired differences over splits, by Bonferroni"
# Splits share patients, so their differences vary less than those of other patients would.
MARKS = (
    "\\*: leaves out 0, so that further splits of these patients would hardly turn it round;",
    "\\*\\*: does so, too, with Nadeau and Bengio's (2003) variance for splits that share",
    "patients, which is about other patients, and rather too wide where most are tested.",
)


class Difference(NamedTuple):
    """A mean of paired differences with its interval."""

    mean: float
    low: float
    high: float
    shared: float = inf  # half of the interval that allows for patients whom splits share

    @property
    def leaves_out_zero(self) -> bool:
        """Whether the interval says that there is a difference.

        One without a width does not: few splits that differ alike do not show how far they vary.
        """
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


def one_or_range(counts: Iterable[int]) -> str:
    """ "44", or "44 to 45" where splits differ in it; at least one count."""
    found = sorted(set(counts))
    return f"{found[0]}" if len(found) == 1 else f"{found[0]} to {found[-1]}"


def told(differences: Sequence[Difference]) -> str:
    """How many of a table's differences are marked, and how."""
    marked = sum(difference.leaves_out_zero for difference in differences)
    others = sum(difference.holds_for_others for difference in differences)
    return f"Of {len(differences)} differences {marked} are marked, {others} of them twice."
