"""A model in all balls, or as near to all as possible, as a combination of the balls' centres.

Equation 2 of GEMS by `descend`. Personal GEMS adds the weights a_k and keeps w in the user's own
ball. All steps stay among the combinations w = sum_k b_k c_k with sum_k b_k = 1, so the centres'
inner products are all that is needed of them, however long they are: they give k places in k
dimensions, which are as far from each other as the centres.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from erosion.common.gems.balls import Balls
from erosion.common.gems.descent import Found, Spaces, descend, descend_from_afar


@dataclass(frozen=True, slots=True, eq=False)
class Meeting:
    """The model found, and what it misses."""

    coefficients: Tensor  # (k,) float64, b_k of the model; they add up to 1
    gaps: Tensor  # (k,) how far it lies outside each ball; 0: inside
    residual: float  # the weighted sum of the gaps
    steps: int  # that led to it

    @property
    def in_all(self) -> bool:
        """Whether the model lies in every ball that has a weight."""
        return self.residual == 0.0


def meet(
    gram: Tensor,
    radii: Tensor,
    *,
    weights: Tensor | None = None,
    hard: int | None = None,
    learning_rate: float = 0.01,
    max_steps: int = 1000,
) -> Meeting:
    """The point of smallest weighted gap that was found, from the (weighted) mean of the centres.

    `gram` (k, k) are the centres' inner products, from any origin; nearer is more precise.
    `weights` (k,) are 1 where not given; a ball of weight 0 does not count. The ball number `hard`
    is never left. Steps of fixed length end within about `learning_rate` of the best point; the
    best on the way is returned. Raises ValueError without a ball that counts.
    """
    spaces = _placed(gram, radii, weights, hard)
    found = descend(spaces, spaces.mean, learning_rate=learning_rate, max_steps=max_steps)
    return _meeting(spaces, found)


def meet_from_afar(
    gram: Tensor, radii: Tensor, *, weights: Tensor | None = None, hard: int | None = None
) -> Meeting:
    """The same, in longer steps first where short ones could not cross the space."""
    spaces = _placed(gram, radii, weights, hard)
    return _meeting(spaces, descend_from_afar(spaces))


def meet_balls(balls: Balls, *, learning_rate: float = 0.01) -> tuple[Tensor, Meeting]:
    """The model (d,) that `meet` finds for balls at hand, each counting alike."""
    apart = balls.centres - balls.centres[0]  # exactly 0 where all are the same
    meeting = meet(apart @ apart.T, balls.radii, learning_rate=learning_rate)
    return meeting.coefficients @ balls.centres, meeting


def _placed(gram: Tensor, radii: Tensor, weights: Tensor | None, hard: int | None) -> Spaces:
    """Balls of the same radii and distances in k dimensions, with the mean of the centres at 0."""
    shares = torch.ones(len(radii)) if weights is None else weights
    shares, gram, radii = shares.double(), gram.double(), radii.double()
    mean = shares / shares.sum().clamp(min=1e-300)
    products = gram @ mean
    around = gram - products - products[:, None] + mean @ products  # inner products from the mean
    lengths, directions = torch.linalg.eigh((around + around.T) / 2)
    return Spaces(directions * lengths.clamp(min=0.0).sqrt(), radii, shares, hard=hard)


def _meeting(spaces: Spaces, found: Found) -> Meeting:
    """The coefficients of the point found: the smallest, where several come to the same.

    Centres that may depend on each other, or nearly, would otherwise let them grow without end.
    """
    used = spaces.shares > 0
    if spaces.hard is not None:
        used[spaces.hard] = True
    places = spaces.centres[used] - spaces.mean
    change = torch.linalg.pinv(places.T, rtol=1e-7) @ (found.point - spaces.mean)
    coefficients = spaces.shares / spaces.shares.sum() * (1 - change.sum())
    coefficients[used] += change
    return Meeting(coefficients, found.gaps, found.residual, found.steps)
