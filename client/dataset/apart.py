"""Whether each patient has alone what it has among the others."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

TRIED = 64  # patients at most, evenly from the first to the last
_ROUNDING = 1e-6  # of the largest value; sums and logarithms of one row may be rounded otherwise


def is_apart(of: Callable[[slice], object], together: NDArray[np.generic]) -> bool:
    """`of`: what some of the patients have by themselves; `together` (n, ...): what all have."""
    num_patients = len(together)
    places = np.linspace(0, num_patients - 1, min(TRIED, num_patients)).astype(int).tolist()
    known = np.abs(together[np.isfinite(together)])
    largest = float(known.max()) if known.size else 0.0
    for place in places:
        here = slice(place, place + 1)
        alone, among = np.asarray(of(here)), together[here]
        if alone.shape != among.shape or not np.allclose(
            alone, among, rtol=0.0, atol=_ROUNDING * largest, equal_nan=True
        ):
            return False
    return True
