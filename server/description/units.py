"""Finds hospitals whose figures of a column are off by a factor: another unit, most likely."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isinf, log
from statistics import median

from erosion.common.protocol.summary import QUANTILES, ColumnSummary

OFF_BY = 2.0  # times the others' typical value, either way
FAR = 3.0  # deviations of a column; what is nearer may be other patients
NEAR_FACTOR = 0.12  # relative; the figures are rounded
_MIDDLE = QUANTILES.index(0.5)

# What one unit's number is in another's: only hints, by the size of the factor.
KNOWN = (
    (2.2, "pounds and kilograms"),
    (2.54, "inches and centimetres"),
    (7.5, "mmHg and kPa"),
    (10.0, "a step of ten, such as g/l and g/dl"),
    (18.0, "mg/dl and mmol/l of glucose"),
    (38.7, "mg/dl and mmol/l of cholesterol"),
    (88.4, "umol/l and mg/dl of creatinine"),
    (100.0, "shares and percent, or m and cm"),
    (1000.0, "a step of a thousand, such as mg and g"),
    (365.25, "days and years"),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One hospital's column that does not fit the others'."""

    hospital: str
    column: str
    text: str


def findings(columns: Mapping[str, ColumnSummary]) -> list[Finding]:
    """Of one column, by hospital: whose typical value is far from what is usual of the others."""
    middles = {name: middle_of(column) for name, column in columns.items()}
    known = {name: value for name, value in middles.items() if value is not None}
    found = []
    for name, value in known.items():
        others = [other for hospital, other in known.items() if hospital != name]
        spreads = [columns[h].deviation or 0.0 for h in known if h != name]
        if not others:
            continue
        usual, spread = median(others), median(spreads)
        own = columns[name].deviation or 0.0
        if text := _what_is_off(value, usual, own, spread):
            found.append(Finding(name, columns[name].name, text))
    return found


def middle_of(column: ColumnSummary) -> float | None:
    """The median; the mean where too few patients have a value for it."""
    if len(column.quantiles) > _MIDDLE and column.quantiles[_MIDDLE] is not None:
        return column.quantiles[_MIDDLE]
    return column.mean


def _what_is_off(value: float, usual: float, own: float, spread: float) -> str:
    """A wrong unit moves a column by many of its own deviations; other patients do not."""
    apart = abs(value - usual)
    if apart <= FAR * (min(own, spread) or max(own, spread)) or usual == 0 or value == 0:
        return ""
    if (value < 0) != (usual < 0):
        return f"typically {value:.3g}, the others {usual:.3g}: another sign?"
    factor = abs(value / usual)
    larger = max(factor, 1 / factor) if factor else inf
    if larger < OFF_BY and not apart > FAR * max(own, spread) > 0:
        return ""
    if larger < OFF_BY or isinf(larger):  # the latter where one of the two is next to nothing
        return f"typically {value:.3g}, the others {usual:.3g}: another unit or other patients?"
    times = f"{factor:.2g} times" if factor >= 1 else f"1/{1 / factor:.2g} of"
    hint = _unit_of(larger)
    return f"typically {value:.3g}, {times} the others' {usual:.3g}: another unit{hint}?"


def _unit_of(factor: float) -> str:
    nearest, what = min(KNOWN, key=lambda known: abs(log(known[0]) - log(factor)))
    if abs(log(nearest / factor)) > log(1 + NEAR_FACTOR):
        return ""
    return f" ({what} are {nearest:g} apart)"
