"""One metric: what people read of it, and its interval where a model errs on few patients."""

from dataclasses import dataclass
from math import floor, inf, log, log10, sqrt
from typing import Literal

import numpy as np
from numpy.typing import NDArray

PROBABILITY_FLOOR = 0.01  # one certain mistake must not outweigh all other patients
LARGEST_LOG_LOSS = -log(PROBABILITY_FLOOR)
LARGEST_LOG_LOSS_DIFFERENCE = log((1 - PROBABILITY_FLOOR) / PROBABILITY_FLOOR)


@dataclass(frozen=True, slots=True)
class Metric:
    """A named figure of a model on the user's test patients."""

    name: str  # in result.json and the journal
    label: str  # in a sentence or a table, e.g. "log loss"
    unit: str  # on an axis, e.g. "nats per patient"
    better: Literal["higher", "lower", "near 1"]
    short: str = ""  # a narrow column's heading; "": the label
    from_zero: bool = False  # its axis begins at 0
    baseline: str = ""  # the metric of the data that it is compared with; "": the base rate's own
    remark: str = ""  # what people must know to read it: a sentence for the report
    caption: str = ""  # the same below its curve
    of_data: bool = False  # a figure of the patients, the same for every model
    in_target_unit: bool = False  # which may be small or large: written with four digits
    least: float = -inf  # for any model and patients it is no smaller
    most: float = inf  # and no larger
    by_chance: float | None = None  # of a model that ranks patients by chance

    @property
    def heading(self) -> str:
        """A table's heading, e.g. "Log loss"."""
        return self.label[0].upper() + self.label[1:]

    @property
    def column(self) -> str:
        """A narrow table's heading."""
        return self.short or self.label

    def form(self, value: float) -> str:
        """Return the format of figures of about this size: three decimals, or four digits."""
        if not self.in_target_unit:
            return "z.3f"
        power = floor(log10(abs(value))) if value else 3
        return f"z.{max(0, 3 - power)}f" if -5 <= power < 9 else "z.3e"

    def behind(self, unit: str, mark: str = " ") -> str:
        """Return the suffix for a figure of this metric: the target's unit, or nothing."""
        return f"{mark}{unit}" if unit and self.in_target_unit else ""

    def text(self, value: float) -> str:
        """Return a finite figure of it, for people."""
        return format(value, self.form(value))


Values = NDArray[np.float64]


def log_losses(chances: Values) -> Values:
    """Return -log of each chance, clipped to [0.01, 0.99]."""
    losses: Values = -np.log(np.clip(chances, PROBABILITY_FLOOR, 1 - PROBABILITY_FLOOR))
    return losses


Z = 1.959963984540054  # of the normal distribution's 97.5 %
HALVINGS = 40


def of_mean(seen: Values, other: Values) -> tuple[float, float]:
    """Return the interval of a mean over patients (n,); some could have the other value (n,).

    The ends are those shares of patients with the largest or smallest of the two values that could
    have gone unseen. For 0 and 1 this is the binomial share's interval (Wilson 1927).
    """
    mean, variance, count = float(seen.mean()), float(seen.var()), len(seen)

    def end(value: float) -> float:
        """Return the end for the mean and variance of a mixture: `share` have this value.

        share^2 gap^2 = Z^2 / count ((1 - share) variance + share (1 - share) gap^2)
        """
        gap, ratio = value - mean, Z**2 / count
        a, b = gap**2 * (1 + ratio), ratio * (variance - gap**2)
        if a == 0:
            return mean
        share = (sqrt(b**2 + 4 * a * ratio * variance) - b) / (2 * a)
        return mean + share * gap

    return end(float(np.minimum(seen, other).mean())), end(float(np.maximum(seen, other).mean()))


def of_ranking(chance: float, group: int, others: int) -> tuple[float, float]:
    """Return that of the chance that one of a group ranks above others (Newcombe 2006, method 5).

    Its variance is Hanley and McNeil's (1982), at the value that is asked about.
    """
    pairs, more = group * others, (group + others) / 2 - 1

    def is_too_far(value: float) -> bool:
        spread = 1 + more * ((1 - value) / (2 - value) + value / (1 + value))
        return (chance - value) ** 2 > Z**2 * value * (1 - value) * spread / pairs

    def end(far: float) -> float:
        near = chance
        for _ in range(HALVINGS):
            middle = (near + far) / 2
            near, far = (near, middle) if is_too_far(middle) else (middle, far)
        return far

    return end(0.0), end(1.0)
