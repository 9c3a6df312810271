"""Balls of good-enough models: a centre and a radius each."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

LARGEST_RADIUS = 4000.0  # R_max: no ball is larger, whatever it would still allow


@dataclass(frozen=True, slots=True, eq=False)
class Balls:
    """Several balls in one space."""

    centres: Tensor  # (k, d) float64
    radii: Tensor  # (k,) float64, 0 or more

    def __len__(self) -> int:
        return len(self.radii)

    def gaps(self, point: Tensor) -> Tensor:
        """How far `point` (d,) lies outside each ball, 0 inside: (k,)."""
        distances: Tensor = (self.centres - point).norm(dim=1)
        return (distances - self.radii).clamp(min=0.0)

    def only(self, which: Sequence[int] | Tensor) -> "Balls":
        """Some of the balls, by their places."""
        chosen = torch.as_tensor(which, dtype=torch.long)
        return Balls(self.centres[chosen], self.radii[chosen])


def balls(centres: Tensor, radii: Tensor) -> Balls:
    """Balls of centres (k, d) and radii (k,), in double precision. Raises ValueError."""
    if centres.dim() != 2 or radii.shape != centres.shape[:1]:
        raise ValueError(
            f"{tuple(radii.shape)} radii for centres of shape {tuple(centres.shape)};"
            " each centre (k, d) needs one radius (k,)"
        )
    if not bool(torch.isfinite(centres).all()):
        raise ValueError("a ball's centre is not finite")
    for radius in radii.tolist():
        if problem := problem_with_radius(radius):
            raise ValueError(problem)
    return Balls(centres.double(), radii.double())


def problem_with_radius(radius: float) -> str | None:
    """Why no honest hospital sends this radius, or None."""
    if not isfinite(radius):
        return f"a radius of {radius} is not a finite number"
    if radius < 0:
        return f"a radius of {radius:g} is negative"
    if radius > LARGEST_RADIUS * (1 + 1e-6):  # it may have travelled in single precision
        return f"a radius of {radius:g} is above {LARGEST_RADIUS:g}, the largest that is measured"
    return None
