"""Short vectors with their types."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


def f32(values: Iterable[float]) -> NDArray[np.float32]:
    """(n,) float32."""
    return np.array(list(values), np.float32)


def u32(values: Iterable[int]) -> NDArray[np.uint32]:
    """(n,) uint32."""
    return np.array(list(values), np.uint32)
