"""A number column's figures as a site gives them: never about fewer than a cell of patients.

Before anything is computed, values beyond a fence are moved to it, so that no patient's own extreme
moves a figure: the fence lies 1.5 times the distance of the `reach`-th smallest and largest values
beyond them, where `reach` is a cell of values or, in small hospitals, a quarter. A quantile is the
mean of the cell of values around it, and is left out where fewer than a cell lie on either side.
"""

from math import sqrt

import numpy as np
from numpy.typing import NDArray

from erosion.client.cells.rounding import draw, rounded, rounded_count, rounded_deviation
from erosion.common.protocol.summary import QUANTILES, relative_step
from erosion.common.settings.base import Settings

FENCE = 1.5
CONSTANT = 1e-6  # of the mean; a deviation so small is rounding


class ColumnFigures(Settings):
    """Of the patients who have a value."""

    count: int  # a multiple of the cell; 0: too few, and nothing else is told
    mean: float = 0.0
    deviation: float = 0.0  # 0: the same value for all, or for all but a few
    quantiles: tuple[float | None, ...] = ()  # of QUANTILES


def sums_of(figures: ColumnFigures) -> tuple[int, float, float]:
    """Number, sum and sum of squares of values with these figures."""
    mean, deviation = figures.mean, figures.deviation
    return figures.count, figures.count * mean, figures.count * (deviation**2 + mean**2)


def column_figures(values: NDArray[np.float64], cell: int, secret: bytes, of: str) -> ColumnFigures:
    """The figures of values (n,) without missing ones; `of` names the set for the draws."""
    count = rounded_count(len(values), cell, draw(secret, of, "count"))
    if count == 0:
        return ColumnFigures(count=0)
    fenced = _fenced(np.sort(values), cell)
    mean, spread = float(fenced.mean()), sqrt(float(fenced.var()))
    if spread <= CONSTANT * abs(mean):
        spread = 0.0
    deviation = rounded_deviation(spread, count, cell, draw(secret, of, "deviation"))
    step = deviation * relative_step(count, cell)
    quantiles = [
        None if middle is None else rounded(middle, step, draw(secret, of, f"quantile {level}"))
        for level in QUANTILES
        for middle in (_around(fenced, level, cell),)
    ]
    return ColumnFigures(
        count=count,
        mean=rounded(mean, step, draw(secret, of, "mean")) if step else mean,
        deviation=deviation,
        quantiles=tuple(quantiles),
    )


def _fenced(ordered: NDArray[np.float64], cell: int) -> NDArray[np.float64]:
    reach = min(cell, max(1, len(ordered) // 4))
    low, high = float(ordered[reach - 1]), float(ordered[-reach])
    width = FENCE * (high - low)
    return np.clip(ordered, low - width, high + width)


def _around(ordered: NDArray[np.float64], level: float, cell: int) -> float | None:
    """The mean of the cell of values around a quantile; None where it is too far out."""
    if round(len(ordered) * min(level, 1 - level), 6) < cell:
        return None
    start = round(len(ordered) * level - cell / 2)
    return float(ordered[start : start + cell].mean())
