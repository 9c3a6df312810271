"""The search for a model in all good-enough spaces: subgradient steps of fixed length.

It minimises sum_k a_k max(0, |s_k (c_k - w)| - r_k) (GEMS, equation 2). In the paper s_k is 1 and
a_k is 1, so the spaces are balls. With s_k = 1 / axes_k, parameter by parameter, hospital k's space
is an ellipsoid; the authors' code for networks has s_k = c_k, since what is meant to leave
parameters out there, their mask, holds the centre's own values.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

_MET = 1e-6  # of the scale: a residual up to this counts as 0


@dataclass(frozen=True, slots=True, eq=False)
class Spaces:
    """Where a model is good enough for whom."""

    centres: Tensor  # (k, d) float64, c_k
    radii: Tensor  # (k,) float64, r_k
    shares: Tensor  # (k,) float64, a_k; a space of share 0 does not count
    scales: Tensor | None = None  # (k, d) float64, s_k; None: 1
    hard: int | None = None  # the number of a ball that is never left

    def __post_init__(self) -> None:
        if not float(self.shares.sum()) > 0:
            raise ValueError("no ball to look for a model in")

    @property
    def mean(self) -> Tensor:
        """The mean of the centres by their shares: (d,)."""
        return self.shares @ self.centres / self.shares.sum()

    def apart(self, point: Tensor) -> Tensor:
        """s_k (w - c_k): (k, d)."""
        apart = point - self.centres
        return apart if self.scales is None else self.scales * apart

    def kept(self, point: Tensor) -> Tensor:
        """The nearest point of the hard ball."""
        if self.hard is None:
            return point
        away, radius = point - self.centres[self.hard], self.radii[self.hard]
        distance = away.norm()
        return point if distance <= radius else self.centres[self.hard] + away * radius / distance


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """A model, and what it misses."""

    point: Tensor  # (d,) float64
    gaps: Tensor  # (k,) how far it lies outside each space, on that space's scale; 0: inside
    residual: float  # the sum of the gaps by their shares
    steps: int  # that led to it

    @property
    def in_all(self) -> bool:
        """Whether the model lies in every space that counts."""
        return self.residual == 0.0


def descend(
    spaces: Spaces, start: Tensor, *, learning_rate: float = 0.01, max_steps: int = 1000
) -> Found:
    """The point of smallest residual on the way from `start` (d,).

    Steps end within about `learning_rate` of the best point.
    """
    point = spaces.kept(start)
    apart = spaces.apart(point)
    distances = apart.norm(dim=1)
    scale = float(distances[spaces.shares > 0].max())  # what does not count sets no measure
    gaps = (distances - spaces.radii).clamp(min=0.0)
    best = Found(point, gaps, float(spaces.shares @ gaps), 0)
    for step in range(1, max_steps + 1):
        if best.residual <= _MET * scale:
            break
        # a_k s_k^2 (w - c_k) / |s_k (w - c_k)|, over the spaces that miss the point. At a centre
        # itself there is no direction, and nothing to gain.
        missed = (gaps > 0) & (distances > 1e-12 * scale)
        pulls = torch.where(missed, spaces.shares / distances.clamp(min=1e-300), 0.0)
        slopes = pulls[:, None] * apart
        slope = (slopes if spaces.scales is None else spaces.scales * slopes).sum(dim=0)
        if float(slope.norm()) <= 1e-12 * float(spaces.shares.sum()):
            break  # the spaces pull evenly: no step leads on
        point = spaces.kept(point - learning_rate * slope)
        apart = spaces.apart(point)
        distances = apart.norm(dim=1)
        gaps = (distances - spaces.radii).clamp(min=0.0)
        residual = float(spaces.shares @ gaps)
        if residual < best.residual:
            best = Found(point, gaps, residual, step)
    if best.residual <= _MET * scale:
        # Rounding alone is left of these gaps.
        return Found(best.point, torch.where(spaces.shares > 0, 0.0, best.gaps), 0.0, best.steps)
    return best


def descend_from_afar(spaces: Spaces, *, shortest: float = 0.01, max_steps: int = 1000) -> Found:
    """The same from the mean, in longer steps first where short ones could not cross the space.

    So one hospital whose model is far from the others' moves the start, but hardly the result: in
    equation 2 it pulls with the same strength from everywhere. The last steps have the length
    `shortest`.
    """
    found = descend(spaces, spaces.mean, max_steps=0)
    width = float((spaces.centres - found.point).norm(dim=1).max())
    length = 0.01
    while length * max_steps < width:
        length *= 10
    while not found.in_all and length >= shortest * 0.99:
        found = descend(spaces, found.point, learning_rate=length, max_steps=max_steps)
        length /= 10
    return found
