"""One metric: what people read of it in tables, curves and sentences."""

from dataclasses import dataclass
from math import floor, inf, log10
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
    in_target_unit: bool = False  # which may be small or large: written with four digits
    least: float = -inf  # whatever the model and the patients are, it is no smaller
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
        """How figures of about this size are written: with three decimals, or four digits."""
        if not self.in_target_unit:
            return "z.3f"
        power = floor(log10(abs(value))) if value else 3
        return f"z.{max(0, 3 - power)}f" if -5 <= power < 9 else "z.3e"

    def text(self, value: float) -> str:
        """A finite figure of it, for people."""
        return format(value, self.form(value))

    def allows(self, value: float) -> bool:
        """Whether it can have this value, but for rounding."""
        return is_within(value, self.least, self.most)


def is_within(value: float, least: float, most: float) -> bool:
    """Whether a value lies between two bounds, but for rounding; NaN lies nowhere."""
    return least - _rounding(least) <= value <= most + _rounding(most)


def _rounding(bound: float) -> float:
    return ROUNDING * max(1.0, abs(bound))
