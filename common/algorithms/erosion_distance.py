"""The distances that Weight Erosion can punish: Euclidean or cosine, layers weighted or not."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

import torch
from torch import Tensor

from erosion.common.aggregation.cohort import Cohort, KnowsProducts
from erosion.common.algorithms.base import BuildContext, Layout
from erosion.common.algorithms.personal_layers import own_places
from erosion.common.algorithms.sealed_measure import WeightedPlace

DistanceKind = Literal["euclidean", "cosine"]


@dataclass(frozen=True, slots=True)
class Distances:
    """How far every peer is from the user."""

    own_norm: float  # |g_0| in the same measure; where it is 0 no distance is defined
    to_own: Sequence[float]  # (n,) d_i, in the order of the cohort's peers


def measure(
    cohort: Cohort,
    kind: DistanceKind,
    places: Sequence[WeightedPlace],
    noise: Sequence[float] | None = None,
) -> Distances:
    """All d_i.

    With layer weights w_l, <g, h> is the sum over layers of w_l <g_l, h_l>. Euclidean:
    |g_i - g_0| / |g_0|. Cosine: 1 - <g_i, g_0> / (|g_i| |g_0|), from 0 (same direction) to 2; a
    zero update, or one no longer than its noise, has no direction and is at distance 1.
    `noise` (n,): how much of each peer's <g_i, g_i> is noise for privacy on average; it is no
    distance, and is taken off.
    """
    noisy = torch.tensor(noise or [0.0] * len(cohort.peers), dtype=torch.float64)
    if kind == "euclidean" and not places:
        own_norm, relative = cohort.own_norm(), cohort.distances_to_own()
        if noise and own_norm > 0:
            relative = (relative.square() - noisy / own_norm**2).clamp(min=0.0).sqrt()
        return Distances(own_norm, relative.tolist())
    squares, with_own = _products(cohort, places)
    own = squares[0]
    if noise:
        squares = (squares - torch.cat([torch.zeros(1), noisy])).clamp(min=0.0)
    if kind == "euclidean":
        apart = (squares - 2 * with_own + own).clamp(min=0.0).sqrt() / own.sqrt()
    else:
        lengths = (squares * own).sqrt()  # 0 where g_i is, or is no longer than its noise
        cosine = torch.where(lengths > 0, with_own / lengths, 0.0)
        apart = 1 - cosine.clamp(-1.0, 1.0)
    return Distances(float(own.sqrt()), apart[1:].tolist())


@dataclass(frozen=True, slots=True)
class ExpectedNoise:
    """What the noise for privacy adds to the squared length of a peer's update, on average."""

    deviation: Callable[[float], float]  # of each parameter of an update by so many patients
    weighted_dim: float  # parameters that carry noise, each with its weight in the measure

    def of(self, cohort: Cohort) -> list[float]:
        """Of each peer, (n,), in the cohort's order.

        A hospital of few patients must have much noise; one that lies would excuse any distance by
        its number, so no more is believed than of one with half the median's patients.
        """
        patients = [update.samples_seen for update in cohort.updates[1:]]
        fewest = median(patients) / 2 if patients else 0.0
        return [self.weighted_dim * self.deviation(max(n, fewest)) ** 2 for n in patients]


def noise_in(
    context: BuildContext, own_parameters: Sequence[str], places: Sequence[WeightedPlace] = ()
) -> ExpectedNoise | None:
    """Of a study's updates; None: they have none. What stays at the hospitals carries none."""
    if context.noise_deviation is None:
        return None
    stays = own_places(own_parameters, context.layout())
    weights = _weights_in(slice(0, len(stays)), places)
    return ExpectedNoise(context.noise_deviation, float(weights[~stays].sum()))


def weighted_places(layer_weights: Mapping[str, float], layout: Layout) -> list[WeightedPlace]:
    """Where weights other than 1 apply; a name means a parameter or all below it ("fc": "fc.bias").

    The longest name that fits a parameter counts. Raises ValueError for a name that fits none, and
    where no weight is left.
    """
    for name in layer_weights:
        if not any(_fits(name, parameter) for parameter in layout):
            raise ValueError(
                f"layer_weights names {name!r}; the model's parameters are {', '.join(layout)}"
            )
    weights = {
        parameter: layer_weights[max(names, key=len)]
        for parameter in layout
        if (names := [name for name in layer_weights if _fits(name, parameter)])
    }
    if len(weights) == len(layout) and not any(weights.values()):
        raise ValueError("layer_weights are all 0; leave at least one layer in the distance")
    return [(layout[parameter], weight) for parameter, weight in weights.items() if weight != 1]


def _fits(name: str, parameter: str) -> bool:
    return parameter == name or parameter.startswith(f"{name}.")


def _products(cohort: Cohort, places: Sequence[WeightedPlace]) -> tuple[Tensor, Tensor]:
    """<g_i, g_i> and <g_i, g_0> with layer weights, own first: two (n+1,) float64."""
    if isinstance(cohort, KnowsProducts):
        return cohort.products()
    squares = torch.zeros(len(cohort.updates), dtype=torch.float64)
    with_own = torch.zeros_like(squares)
    for block, rows in cohort.blocks():
        values = torch.stack(rows).double()
        scaled = values * _weights_in(block, places)
        squares += torch.linalg.vecdot(scaled, values)
        with_own += scaled @ values[0]
    return squares, with_own


def _weights_in(block: slice, places: Sequence[WeightedPlace]) -> Tensor:
    """The weight of each coordinate of a block: (width,) float64."""
    weights = torch.ones(block.stop - block.start, dtype=torch.float64)
    for place, weight in places:
        start, stop = max(place.start, block.start), min(place.stop, block.stop)
        if start < stop:
            weights[start - block.start : stop - block.start] = weight
    return weights
