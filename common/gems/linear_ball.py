"""The ball of good-enough output layers, in closed form (GEMS, ConstructBall for linear models).

Along a direction z the margin of a patient against class j is a_j + R b_j, so it is lost at
R* = min a_j / (-b_j) over the classes with b_j < 0. Accuracy falls below epsilon at an order
statistic of the patients' R*: no bisection is needed. A patient who becomes right again at a
larger R is not counted, so the radius is never larger than the bisection's.

An order statistic is a figure of one patient. Where a cell is asked for, the radius is the mean of
the R* of so many patients, the last of whom is the order statistic: it is no larger, and about all
of them. Where fewer may be lost there is no such mean, and the radius is 0.
"""

from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor

from erosion.common.gems.balls import LARGEST_RADIUS
from erosion.common.gems.layers import Layer

_DIRECTIONS_AT_ONCE = 64  # so that what lies in memory fits into the cache


@dataclass(frozen=True, slots=True)
class GoodEnough:
    """A hospital's ball around its own model, and how good that model is."""

    radius: float  # along the directions tried
    certified: float  # every model within this distance is good enough, in any direction; a figure
    # of one patient, which leaves no site
    accuracy: float  # of the centre
    needed: float  # the accuracy asked for, epsilon

    @property
    def is_reached(self) -> bool:
        """Whether the centre itself is good enough."""
        return self.accuracy >= self.needed - 1e-9


def good_enough_ball(
    layer: Layer,
    features: Tensor,
    labels: Tensor,
    epsilon: float,
    directions: Tensor,
    axes: Tensor | None = None,
    cell: int = 1,
) -> GoodEnough:
    """How far `layer` can move along each direction until its accuracy falls below epsilon.

    features (n, d) and labels (n,) are patients that it was not trained on, directions (p, C d + C)
    unit vectors. With `axes` (C d + C,) it is an ellipsoid: parameter i moves by axes_i times what
    it would move in a ball of the same radius. The radius is about `cell` patients along the
    direction that allows least; it is 0 where fewer may be lost, or where `layer` itself is below
    epsilon. Raises ValueError without patients.
    """
    if not len(labels):
        raise ValueError("no patient to measure a good-enough ball on")
    margins, correct = _margins(layer, features, labels)
    # How many may be lost, and one more; the tolerance undoes .7 * 10 = 7.000000000000001.
    rank = int(correct.sum()) - ceil(epsilon * len(labels) - 1e-9) + 1
    accuracy = float(correct.double().mean())
    if rank < 1:
        return GoodEnough(0.0, 0.0, accuracy, epsilon)
    right, targets = features[correct], labels[correct]
    inverse = margins[correct].clamp(min=1e-30).reciprocal()  # (n0, C), of a_j
    inverse.scatter_(1, targets[:, None], 0.0)  # there is no margin against the true class
    if rank > len(targets):  # epsilon = 0: everything is good enough
        return GoodEnough(LARGEST_RADIUS, LARGEST_RADIUS, accuracy, epsilon)
    if axes is None:
        axes = torch.ones(layer.flat.numel())
    radius = 0.0
    if rank >= cell:
        radius = min(
            _smallest_radius(part * axes, right, targets, inverse, rank, cell)
            for part in torch.split(directions, _DIRECTIONS_AT_ONCE)
        )
    certified = _certified(inverse, right, targets, axes, rank)
    return GoodEnough(radius, certified, accuracy, epsilon)


def _margins(layer: Layer, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """logit_y - logit_j: (n, C), and who is predicted rightly: (n,)."""
    logits = layer(features)
    own = logits.gather(1, labels[:, None])
    return own - logits, logits.argmax(dim=1) == labels


def _smallest_radius(
    directions: Tensor, right: Tensor, targets: Tensor, inverse: Tensor, rank: int, cell: int
) -> float:
    """The smallest radius at which `rank` patients are lost, over some directions (q, C d + C).

    Of each direction it is the mean over the last `cell` of them, or the largest radius where so
    many are never lost.
    """
    classes, width = inverse.shape[1], right.shape[1]
    weights = directions[:, : classes * width].reshape(-1, width)  # (q C, d)
    slopes = (weights @ right.T).reshape(len(directions), classes, -1)
    slopes += directions[:, classes * width :, None]
    own = slopes.gather(1, targets.expand(len(directions), 1, -1))
    rates = ((slopes - own) * inverse.T).amax(dim=1)  # 1 / R* of every patient: (q, n0)
    # The smallest R* are those of the largest rates.
    last = rates.topk(rank, dim=1).values[:, rank - cell :].double()
    # A mean with some who are never lost would be about the others alone.
    ends = last[:, -1] > 1 / LARGEST_RADIUS
    return float(last[ends].reciprocal().mean(dim=1).amin()) if ends.any() else LARGEST_RADIUS


def _certified(inverse: Tensor, right: Tensor, targets: Tensor, axes: Tensor, rank: int) -> float:
    """The radius that holds in every direction.

    By moving class c's parameters along their axes its logit changes by at most
    l_c = sqrt(sum_i (axes_ci x_i)^2), so a margin by sqrt(l_y^2 + l_j^2): sqrt(2(|x|^2 + 1)) in a
    ball.
    """
    classes, width = inverse.shape[1], right.shape[1]
    squares = axes.double().square()
    of_weights = squares[: classes * width].reshape(classes, width)
    reach = right.double().square() @ of_weights.T + squares[classes * width :]  # l_c^2: (n0, C)
    steepness = (reach + reach.gather(1, targets[:, None])).sqrt()
    rates = (inverse.double() * steepness).amax(dim=1)
    return min(1 / float(rates.kthvalue(len(rates) - rank + 1).values), LARGEST_RADIUS)
