"""How a model's input columns are made of a table's values: curves, logarithms, cuts, indicators.

Everything is declared in the study, so nothing about patients is exchanged for it. A patient
without a value has NaN in a column of numbers, until scaling fills it.

The curve is a restricted cubic spline in truncated powers (Harrell, Regression Modeling Strategies,
section 2.4.5): linear beyond the outer knots, with two columns fewer than knots besides the value.
"""

from collections.abc import Iterator, Sequence
from math import log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from erosion_common.tasks.features import CategoryFeature, NumberFeature

Floats = NDArray[np.float64]
Feature = NumberFeature | CategoryFeature
LOGARITHM = "logarithm"  # label of a number's
ABSENT = -1  # in place of a category's place: the column says that there is no value


class InputTerm(NamedTuple):
    """One input column of a feature."""

    code: int | None = None  # place of the category that it indicates; ABSENT; None: a number
    cubes: tuple[tuple[float, float], ...] = ()  # (knot, factor) of a curve; (): the number itself
    label: str = ""  # which of the feature's columns it is, for people; "": the number itself


def input_terms(feature: Feature, policy: str) -> list[InputTerm]:
    """Return the input columns of a feature with this policy for missing values."""
    if isinstance(feature, CategoryFeature):
        found = [InputTerm(n, label=str(c)) for n, c in enumerate(feature.categories) if n]
    else:
        found = [InputTerm(label=LOGARITHM if feature.log else "")]
        knots = [log(knot) if feature.log else knot for knot in feature.knots]
        curve = (InputTerm(None, cubes) for cubes in _curve(knots))
        found += [each._replace(label=f"curve {n}") for n, each in enumerate(curve, 1)]
    if policy == "indicator":
        found.append(InputTerm(ABSENT, label="missing"))
    return found


def _curve(knots: Sequence[float]) -> Iterator[tuple[tuple[float, float], ...]]:
    """Yield the truncated cubes of each column of a curve with these knots."""
    if not knots:
        return
    *inner, before, last = knots
    square = (last - knots[0]) ** 2
    for knot in inner:
        yield (
            (knot, 1 / square),
            (before, -(last - knot) / (last - before) / square),
            (last, (before - knot) / (last - before) / square),
        )


def prepared(feature: Feature, values: Floats) -> Floats:
    """Return a feature's values (n,) after its cuts and its logarithm."""
    if isinstance(feature, NumberFeature):
        if feature.winsorise is not None:
            values = np.clip(values, *feature.winsorise)
        if feature.log:
            values = np.log(values)
    return values


def term_values(term: InputTerm, values: Floats) -> Floats:
    """Return the input column (n,) of prepared values, NaN where a number is missing."""
    if term.code is not None:
        absent = np.isnan(values)
        return np.asarray(absent if term.code == ABSENT else values == term.code, dtype=np.float64)
    if not term.cubes:
        return values
    curve = np.zeros_like(values)
    for knot, factor in term.cubes:
        curve += factor * np.maximum(values - knot, 0.0) ** 3
    return curve
