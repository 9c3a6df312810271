"""A model in all balls, or as near to all as possible (GEMS, equation 2).

It minimises sum_k a_k max(0, |c_k - w| - r_k) by subgradient steps of fixed length from the
(weighted) mean of the centres. Personal GEMS adds the weights a_k and keeps w in the user's own
ball. All steps stay among the combinations w = sum_k b_k c_k with sum_k b_k = 1, so the centres'
inner products are all that is needed of them, however long they are.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from erosion.common.gems.balls import Balls

_MET = 1e-6  # of the scale: a residual up to this counts as 0


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
    start: Tensor | None = None,
) -> Meeting:
    """The point of smallest weighted gap that was found.

    `gram` (k, k) are the centres' inner products, from any origin; nearer is more precise.
    `weights` (k,) are 1 where not given; a ball of weight 0 does not count. The ball number `hard`
    is never left. Steps of fixed length end within about `learning_rate` of the best point; the
    best on the way is returned. `start` (k,) are the coefficients to begin with, those of the mean
    where not given. Raises ValueError without a ball that counts.
    """
    shares = torch.ones(len(radii)) if weights is None else weights
    shares, gram, radii = shares.double(), gram.double(), radii.double()
    if not float(shares.sum()) > 0:
        raise ValueError("no ball to look for a model in")
    point = _kept(shares / shares.sum() if start is None else start, gram, radii, hard)
    distances = _distances(point, gram)
    scale = float(distances.max())
    gaps = (distances - radii).clamp(min=0.0)
    best, best_gaps, best_step = point, gaps, 0
    best_loss, steps = float(shares @ gaps), 0
    while best_loss > _MET * scale and steps < max_steps:
        # a_k times the unit vector away from c_k, over the balls that miss the point. At a centre
        # itself there is no direction, and nothing to gain.
        pulls = torch.where((gaps > 0) & (distances > 0), shares / distances.clamp(min=1e-300), 0.0)
        step = pulls.sum() * point - pulls
        if _length(step, gram) <= 1e-12 * float(shares.sum()):
            break  # the balls pull evenly: no step leads on
        point, steps = _kept(point - learning_rate * step, gram, radii, hard), steps + 1
        distances = _distances(point, gram)
        gaps = (distances - radii).clamp(min=0.0)
        loss = float(shares @ gaps)
        if loss < best_loss:
            best, best_gaps, best_loss, best_step = point, gaps, loss, steps
    if best_loss <= _MET * scale:
        # Rounding alone is left of these gaps.
        return Meeting(best, torch.where(shares > 0, 0.0, best_gaps), 0.0, best_step)
    return Meeting(best, best_gaps, best_loss, best_step)


def meet_from_afar(
    gram: Tensor,
    radii: Tensor,
    *,
    weights: Tensor | None = None,
    hard: int | None = None,
    learning_rate: float = 0.01,
    max_steps: int = 1000,
) -> Meeting:
    """The same, in longer steps first where short ones could not cross the space.

    So one hospital whose model is far from the others' moves the start, but hardly the result: in
    equation 2 it pulls with the same strength from everywhere.
    """
    meeting = meet(gram, radii, weights=weights, hard=hard, max_steps=0)
    width = float(_distances(meeting.coefficients, gram.double()).max())
    length = learning_rate
    while length * max_steps < width:
        length *= 10
    while not meeting.in_all and length >= learning_rate * 0.99:
        meeting = meet(
            gram,
            radii,
            weights=weights,
            hard=hard,
            learning_rate=length,
            max_steps=max_steps,
            start=meeting.coefficients,
        )
        length /= 10
    return meeting


def meet_balls(balls: Balls, *, learning_rate: float = 0.01) -> tuple[Tensor, Meeting]:
    """The model (d,) that `meet` finds for balls at hand, each counting alike."""
    apart = balls.centres - balls.centres.mean(dim=0)
    meeting = meet(apart @ apart.T, balls.radii, learning_rate=learning_rate)
    return meeting.coefficients @ balls.centres, meeting


def _distances(point: Tensor, gram: Tensor) -> Tensor:
    """|c_k - w| for w of coefficients `point`: (k,)."""
    products = gram @ point
    squared = point @ products - 2 * products + gram.diagonal()
    return squared.clamp(min=0.0).sqrt()


def _length(combination: Tensor, gram: Tensor) -> float:
    return float((combination @ gram @ combination).clamp(min=0.0).sqrt())


def _kept(point: Tensor, gram: Tensor, radii: Tensor, hard: int | None) -> Tensor:
    """The nearest point of the ball number `hard`."""
    if hard is None:
        return point
    distance, radius = float(_distances(point, gram)[hard]), float(radii[hard])
    if distance <= radius:
        return point
    centre = torch.zeros_like(point)
    centre[hard] = 1.0
    return centre + (point - centre) * (radius / distance)
