"""The parameters that distances in sealed rounds are of: all alike, unless a method differs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

WeightedPlace = tuple[slice, float]  # a layer's place in the flat vector, and its weight
F = TypeVar("F", np.float32, np.float64)


@dataclass(frozen=True, slots=True)
class SealedMeasure:
    """The distances that a method needs. Hospitals read it in the study, not in a request."""

    places: Sequence[WeightedPlace] = ()  # where a coordinate counts other than once
    cosine: bool = False  # it needs directions, which are of a distance and two lengths

    @property
    def needs_lengths(self) -> bool:
        """Whether each hospital also says how long its update is.

        With layer weights the length gives the sum its range: layers that count little may hold
        large values.
        """
        return self.cosine or bool(self.places)

    @property
    def largest_scale(self) -> float:
        """How many times as long as a vector its `scaled` one can be, 1 at least."""
        return math.sqrt(max([1.0, *(weight for _, weight in self.places)]))

    def scaled(self, vector: NDArray[F]) -> NDArray[F]:
        """With every coordinate times the root of its weight, so that lengths are the measure's."""
        if not self.places:
            return vector
        scaled = vector.copy()
        for place, weight in self.places:
            scaled[place] *= weight**0.5
        return scaled


WHOLE = SealedMeasure()  # of all parameters alike
