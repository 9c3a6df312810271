"""Holm's step-down method (1979): p-values of several tests that are looked at together."""

from collections.abc import Mapping


def adjusted_p_values(p_values: Mapping[str, float]) -> dict[str, float]:
    """Return by name the k-th smallest of m times m - k + 1, and none below a smaller one's."""
    adjusted: dict[str, float] = {}
    at_least = 0.0
    for rank, name in enumerate(sorted(p_values, key=p_values.__getitem__)):
        at_least = max(at_least, min(1.0, (len(p_values) - rank) * p_values[name]))
        adjusted[name] = at_least
    return adjusted
