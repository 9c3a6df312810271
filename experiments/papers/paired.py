"""Intervals of paired differences over splits that hold all together."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

ROUNDED = 1e-6  # cells' figures, or less finely
LEVEL = 0.05  # of all intervals of a table together
INTERVALS = "Student's intervals of paired differences over splits, by Bonferroni"


class Difference(NamedTuple):
    """A mean of paired differences with its interval."""

    mean: float
    low: float
    high: float

    @property
    def leaves_out_zero(self) -> bool:
        """Whether the interval says that there is a difference.

        One without a width does not: few splits that differ alike do not show how far they vary.
        """
        return self.high - self.low > ROUNDED and (self.low > 0 or self.high < 0)

    def text(self, form: str = "+.3f") -> str:
        """For a table; marked where the interval leaves out 0."""
        mark = " \\*" if self.leaves_out_zero else ""
        return f"{self.mean:{form}} ({self.low:{form}} to {self.high:{form}}){mark}"


def paired_difference(
    ours: Sequence[float], theirs: Sequence[float], *, comparisons: int
) -> Difference:
    """Ours minus theirs over the same splits, two or more.

    Student's interval at `LEVEL` for all `comparisons` together (Bonferroni).
    """
    apart = np.array(ours) - np.array(theirs)
    half = stats.t.ppf(1 - LEVEL / 2 / comparisons, len(apart) - 1) * stats.sem(apart)
    middle = float(apart.mean())
    return Difference(middle, float(middle - half), float(middle + half))
