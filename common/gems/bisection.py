"""The radius that the paper's bisection returns, for a test that fails from some radius on.

ConstructBall halves [0, R_max] until the interval is narrower than Delta. With fixed directions
the outcome depends only on where the test begins to fail, so it can be read off a grid.
"""

from math import ceil, floor, log2
from typing import Literal

from erosion.common.gems.balls import LARGEST_RADIUS

RadiusKind = Literal["lower_bound", "midpoint"]
LAYER_WIDTH = 0.01  # Delta for an output layer
ELLIPSOID_WIDTH = 0.1  # Delta for an ellipsoid, in the authors' code
NEURON_WIDTH = 1.0  # and for a neuron


def interval_width(width: float) -> float:
    """How wide the interval is when the bisection stops: at most `width` (Delta)."""
    return LARGEST_RADIUS / 2.0 ** ceil(log2(LARGEST_RADIUS / width))


def midpoint(radius: float, width: float) -> float:
    """The middle of the last interval, which the authors return; above `radius` in half of cases.

    `radius` is where the test begins to fail.
    """
    step = interval_width(width)
    return min((floor(radius / step) + 0.5) * step, LARGEST_RADIUS - step / 2)
