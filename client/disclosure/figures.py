"""The rule by which counts and a column's figures are rounded before they leave a site.

A count below the smallest cell leaves as 0, any other as a multiple of the cell. A mean leaves as a
multiple of the deviation times cell / n: the shift that a cell of patients, one deviation off,
would cause. A deviation leaves as a power of two with exponents that far apart. Whether a figure
goes up or down to its grid is drawn from the site's secret, with the odds that keep it right on
average. Every step is a power of two, so that the grids of different n are nested.

First, values beyond a fence are moved to it, so that no patient's own extreme moves a figure: the
fence lies 1.5 times the distance of the `reach`-th smallest and largest values beyond them, where
`reach` is a cell of values or, in small hospitals, a quarter. A quantile is the mean of the cell of
values around it, and is left out where fewer than a cell lie on either side.
"""

import hashlib
import hmac
from collections.abc import Mapping
from math import floor, log2, sqrt

import numpy as np
from numpy.typing import NDArray

from erosion.common.protocol.messages import QUANTILES, relative_step
from erosion.common.settings.base import Settings


def draw(secret: bytes, *words: str | bytes) -> float:
    """Return a number in [0, 1) that depends on the secret and the words alone."""
    message = b"".join(
        len(part).to_bytes(8, "big") + part
        for part in (w.encode() if isinstance(w, str) else w for w in words)
    )
    digest = hmac.digest(secret, message, hashlib.sha256)
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53


def rounded_count(count: int, cell: int, at: float) -> int:
    """Return 0 for fewer than a cell of patients, else a multiple of it. `at`: a draw in [0, 1)."""
    return cell * floor(count / cell + at) if count >= cell else 0


def rounded_parts(parts: Mapping[str, int], cell: int, at: float) -> dict[str, int]:
    """Return each part as `rounded_count` has it, with the sum of all parts of a cell preserved.

    They are rounded as the running total passes the multiples of the cell.
    """
    total, told = 0, {}
    for name, count in parts.items():
        before = floor(total / cell + at)
        total += count if count >= cell else 0
        told[name] = cell * (floor(total / cell + at) - before)
    return told


def rounded(value: float, step: float, at: float) -> float:
    """Return the multiple of `step` below or above; the value itself where there is no step."""
    return step * floor(value / step + at) if step > 0 else value


def rounded_deviation(deviation: float, count: int, cell: int, at: float) -> float:
    """Return a power of two; 0 where there is no deviation."""
    if deviation <= 0:
        return 0.0
    return float(2.0 ** rounded(log2(deviation), relative_step(count, cell), at))


FENCE = 1.5
CONSTANT = 1e-6  # of the mean; a smaller deviation is rounding


class ColumnFigures(Settings):
    """Figures of the patients who have a value."""

    count: int  # a multiple of the cell; 0: too few, and nothing else is disclosed
    mean: float = 0.0
    deviation: float = 0.0  # 0: the same value for all, or for all but a few
    quantiles: tuple[float | None, ...] = ()  # for QUANTILES


def sums_of(figures: ColumnFigures) -> tuple[int, float, float]:
    """Return number, sum and sum of squares of values with these figures."""
    mean, deviation = figures.mean, figures.deviation
    return figures.count, figures.count * mean, figures.count * (deviation**2 + mean**2)


def column_figures(values: NDArray[np.float64], cell: int, secret: bytes, of: str) -> ColumnFigures:
    """Return the figures of values (n,) without missing ones; `of` names the set for the draws."""
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
    """Return the mean of the cell of values around a quantile; None where it is too far out."""
    if round(len(ordered) * min(level, 1 - level), 6) < cell:
        return None
    start = round(len(ordered) * level - cell / 2)
    return float(ordered[start : start + cell].mean())
