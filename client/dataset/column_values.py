"""The meaning of the text in one column of a table, and the problems found in it."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from erosion.client.dataset.preparation import UnitChange
from erosion.common.settings.codes import canonical
from erosion.common.tasks.features import CategoryFeature, NumberFeature
from erosion.common.tasks.task import TargetColumn

MISSING_MARKERS = frozenset({"", "na", "nan", "?", "null"})  # in small letters
LARGEST_NUMBER = 1e30  # far beyond medicine, and sums of squares stay finite


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a value, and what to do about it."""

    wrong: str
    remedy: str  # {key} stands for the study's column
    is_range: bool = False  # a number, but not one that the study allows


Parse = Callable[[str], float | Fault]  # NaN where the value is missing

_MAP = 'correct it, or map it under [data.values.{key}] ("" means missing)'
REFUSED = Fault(
    "missing values, which the study refuses",
    'fill them in or remove the patients; the study could say missing = "drop" or "impute"',
)


def feature_parser(
    feature: NumberFeature | CategoryFeature, decimal: str = ".", unit: UnitChange | None = None
) -> Parse:
    """Text to the number in the study's unit, or to the index of the category."""
    if isinstance(feature, NumberFeature):
        return _number_parser(feature, decimal, unit)
    known = {category: float(index) for index, category in enumerate(feature.categories)}
    return _code_parser(known, f"not among the categories {_some(feature.categories)}")


def target_parser(
    column: TargetColumn, decimal: str = ".", unit: UnitChange | None = None
) -> Parse:
    """Text to the number in the study's unit, or to what its code stands for."""
    if isinstance(column, NumberFeature):
        return _number_parser(column, decimal, unit)
    return _code_parser(column.codes, column.wrong)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")


def _code_parser(known: Mapping[str, float], wrong: str) -> Parse:
    def parse(text: str) -> float | Fault:
        code = known.get(canonical(text))
        if code is not None:  # before the markers: a study may have a category "NA"
            return code
        return math.nan if text.lower() in MISSING_MARKERS else Fault(wrong, _MAP)

    return parse


def _number_parser(feature: NumberFeature, decimal: str, unit: UnitChange | None) -> Parse:
    def parse(text: str) -> float | Fault:
        if text.lower() in MISSING_MARKERS:
            return math.nan
        if decimal == "," and "." in text:
            # With a decimal comma a point may group thousands: 1.234 could be either number.
            return Fault("a point, where the decimal mark is a comma", _MAP)
        try:
            # float() alone would take 1_000 for 1000.
            value = math.nan if "_" in text else float(text.replace(decimal, "."))
        except ValueError:
            value = math.nan
        if math.isnan(value):
            comma = decimal == "." and "," in text
            hint = 'if the comma is the decimal mark, set decimal = "," under [data]; '
            return Fault("not a number", hint + _MAP if comma else _MAP)
        if unit is not None:
            value = value * unit.factor + unit.offset
        if abs(value) > LARGEST_NUMBER:
            return Fault(f"beyond ±{LARGEST_NUMBER:g}", _MAP)
        if feature.range is not None and not feature.range[0] <= value <= feature.range[1]:
            low, high = feature.range
            wrong = f"outside {low:g} to {high:g}{f' {feature.unit}' if feature.unit else ''}"
            if unit is not None:
                wrong += " after the change of unit"
            return Fault(wrong, f"check the unit ([data.units] changes it); {_MAP}", is_range=True)
        return value

    return parse
