"""The narrowest cone that holds all updates (after Grimberg et al. 2020, appendix A).

The paper asks whether the updates still fit into a cone; this way of measuring it is ours.

Below 90 degrees there is a direction that every update agrees with to some degree; at 90 there is
none, and whatever is good for one hospital is bad for another. Among n unit vectors u_i the cone's
axis points to v, the point of their convex hull that is nearest to 0, and its half-angle is
arccos |v|: for all i, <u_i, v> >= |v|^2, and no other axis does better.
"""

from math import acos, degrees, sqrt

import torch
from torch import Tensor

MOST_STEPS = 100_000
TOLERANCE = 1e-12  # of <u_i, v>, which is at most 1


def half_angle(gram: Tensor) -> float:
    """Degrees, from 0 (all parallel) to 90; (n, n) inner products of the updates.

    Updates of norm zero have no direction and are left out.
    """
    norms = gram.diagonal().sqrt()
    moving = norms > 0
    cosines = (gram / (norms[:, None] * norms))[moving][:, moving]
    if len(cosines) < 2:
        return 0.0
    square = _squared_distance_to_zero(cosines)
    return degrees(acos(min(1.0, sqrt(square)))) if square > 1e-10 else 90.0


def _squared_distance_to_zero(cosines: Tensor) -> float:
    """min |sum m_i u_i|^2 over m >= 0 with sum 1: the MDM algorithm (Mitchell et al. 1974).

    Each step moves mass from the point that is furthest along v to the one that is least far, as
    much as lowers |v| most.
    """
    mass = torch.zeros(len(cosines), dtype=torch.float64)
    mass[0] = 1.0
    along = cosines[0].clone()  # <u_i, v>
    for _ in range(MOST_STEPS):
        to = int(along.argmin())
        source = int(torch.where(mass > 0, along, -torch.inf).argmax())
        gap = float(along[source] - along[to])
        if gap <= TOLERANCE:
            break
        apart = float(cosines[to, to] + cosines[source, source] - 2 * cosines[to, source])
        step = min(float(mass[source]), gap / apart)
        mass[to] += step
        mass[source] -= step
        along = along + step * (cosines[to] - cosines[source])
    return max(0.0, float(mass @ cosines @ mass))
