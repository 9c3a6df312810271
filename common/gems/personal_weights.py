"""Weights of the hospitals' balls for one user (personal GEMS). A rule of our own."""

from collections.abc import Sequence


def personal_weights(distances: Sequence[float], reach: float = 0.5) -> list[float]:
    """a_i = max(0, 1 - (d_i - d_min) / (reach d_min)) of the peers' distances to the user.

    The nearest peer counts fully; who is further by the share `reach` no longer counts. The
    distances are those of the normalised updates, from a common start.
    """
    if not distances:
        return []
    nearest = min(distances)
    if nearest <= 0:  # a peer with the user's own update: only such peers are near
        return [1.0 if distance <= 0 else 0.0 for distance in distances]
    return [max(0.0, 1 - (d - nearest) / (reach * nearest)) for d in distances]
