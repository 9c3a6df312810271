"""One metric: what people read of it in tables, curves and sentences."""

from dataclasses import dataclass
from math import inf
from typing import Literal

ROUNDING = 1e-6  # beyond a bound, for a bound of at most 1; else as a share of it


@dataclass(frozen=True, slots=True)
class Metric:
    """A named figure of a model on the user's test patients."""

    name: str  # in result.json and the journal
    label: str  # in a sentence or a table, e.g. "log loss"
    unit: str  # on an axis, e.g. "nats per patient"
    better: Literal["higher", "lower", "near 1"]
    short: str = ""  # a narrow column's heading; "": the label
    from_zero: bool = False  # its axis begins at 0
    beside: str = ""  # the metric of the data that stands beside it; "": the base rate's own
    remark: str = ""  # what people must know to read it: a sentence for the report
    caption: str = ""  # the same below its curve
    of_data: bool = False  # a figure of the patients, the same for every model
    least: float = -inf  # whatever the model and the patients are, it is no smaller
    most: float = inf  # and no larger

    @property
    def heading(self) -> str:
        """A table's heading, e.g. "Log loss"."""
        return self.label[0].upper() + self.label[1:]

    @property
    def column(self) -> str:
        """A narrow table's heading."""
        return self.short or self.label

    def allows(self, value: float) -> bool:
        """Whether it can have this value, but for rounding."""
        return is_within(value, self.least, self.most)


def is_within(value: float, least: float, most: float) -> bool:
    """Whether a value lies between two bounds, but for rounding; NaN lies nowhere."""
    return least - _rounding(least) <= value <= most + _rounding(most)


def _rounding(bound: float) -> float:
    return ROUNDING * max(1.0, abs(bound))
