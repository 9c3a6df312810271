"""How far a model's performance differs between hospitals: a random-effects summary.

The variance between hospitals is DerSimonian and Laird's (1986), the interval of the mean Hartung's
and Knapp's (2001), never narrower than the plain one, and the prediction interval that of Higgins
et al. (2009). Shares of ranked pairs are pooled as logits, ratios as logs (Snell et al. 2018).
"""

from collections.abc import Sequence
from math import exp, log, sqrt
from typing import Literal

import numpy as np

from erosion_common.protocol.performance import Estimate
from erosion_common.settings.base import Settings
from erosion_common.tasks.metric import Z

ROUNDING = 5e-4  # of figures that leave a site: no share is pooled as nearer to 0 or 1
SMALLEST_ERROR = 1e-3  # of a figure, on its scale: a site cannot claim to be surer
Scale = Literal["plain", "log", "logit"]


class Pooled(Settings):
    """A mean over hospitals, where it lies, and where that of another hospital would lie."""

    hospitals: int
    mean: Estimate  # with its 95 % interval
    predicted: tuple[float, float] | None  # 95 % prediction interval; None: of two hospitals
    tau: float  # deviation between hospitals, on the scale
    i_squared: float  # share of the variance that is between hospitals
    scale: Scale


def pooled(found: Sequence[Estimate], scale: Scale) -> Pooled | None:
    """Return the summary of several hospitals' figures; None for fewer than two."""
    from scipy.stats import t as students  # slow to import, and seldom needed

    usable = [each for each in found if scale != "log" or each.low > 0]
    if (number := len(usable)) < 2:
        return None
    low, mid, high = np.array(
        [[_to(end, scale) for end in (e.low, e.value, e.high)] for e in usable]
    ).T
    variances = np.maximum((high - low) / (2 * Z), SMALLEST_ERROR) ** 2
    fixed = 1 / variances
    spread = float(fixed @ (mid - fixed @ mid / fixed.sum()) ** 2)  # Cochran's Q
    free = number - 1
    between = max(0.0, (spread - free) / (fixed.sum() - fixed @ fixed / fixed.sum()))
    weights = 1 / (variances + between)
    mean = float(weights @ mid / weights.sum())
    plain = 1 / weights.sum()
    error = sqrt(max(plain, plain * float(weights @ (mid - mean) ** 2) / free))
    half = float(students.ppf(0.975, free)) * error
    predicted = None
    if number > 2:
        reach = float(students.ppf(0.975, number - 2)) * sqrt(between + error**2)
        predicted = _from(mean - reach, scale), _from(mean + reach, scale)
    return Pooled(
        hospitals=number,
        mean=Estimate(
            value=_from(mean, scale), low=_from(mean - half, scale), high=_from(mean + half, scale)
        ),
        predicted=predicted,
        tau=sqrt(between),
        i_squared=max(0.0, 1 - free / spread) if spread > 0 else 0.0,
        scale=scale,
    )


def _to(value: float, scale: Scale) -> float:
    if scale == "log":
        return log(value)
    if scale == "logit":
        share = min(1 - ROUNDING, max(ROUNDING, value))
        return log(share / (1 - share))
    return value


def _from(value: float, scale: Scale) -> float:
    bounded = min(200.0, max(-200.0, value))
    if scale == "log":
        return exp(bounded)
    return 1 / (1 + exp(-bounded)) if scale == "logit" else value
