"""GEMS as its authors' code has it, where that differs from the paper: for the paper's tables.

They return the middle of the bisection's last interval in place of its lower end. For convex models
they have ellipsoids, with axes as long as the Fisher information of a parameter is small,
estimated on 200 patients and one drawn class for each. For networks they lose a cluster of neurons,
train the layer above from chance, and multiply differences by the centre's own values.
"""

from dataclasses import replace
from math import ceil, floor, log2
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from erosion_common.algorithms.gems.balls import (
    LARGEST_RADIUS,
    GoodEnough,
    Layer,
    directions,
    good_enough_ball,
    neuron_radii,
)
from erosion_common.algorithms.gems.retraining import Retraining
from erosion_common.algorithms.gems.rounds import accuracy_of
from erosion_common.settings.base import Settings

RadiusKind = Literal["lower_bound", "midpoint"]
LAYER_WIDTH = 0.01  # Delta for an output layer
ELLIPSOID_WIDTH = 0.1  # Delta for an ellipsoid, in the authors' code
NEURON_WIDTH = 1.0  # and for a neuron


def interval_width(width: float) -> float:
    """Return how wide the interval is when the bisection stops: at most `width` (Delta)."""
    return LARGEST_RADIUS / 2.0 ** ceil(log2(LARGEST_RADIUS / width))


def midpoint(radius: float, width: float) -> float:
    """Return the middle of the last interval, as the authors do; half the time above `radius`.

    `radius` is where the test begins to fail.
    """
    step = interval_width(width)
    return min((floor(radius / step) + 0.5) * step, LARGEST_RADIUS - step / 2)


PATIENTS = 200  # that the information is estimated on
SHORTEST = 0.1  # of the longest axis, which is 1
_LEAST_INFORMATION = 1e-5  # added, so that no axis is without end


def fisher_axes(layer: Layer, features: Tensor, generator: torch.Generator) -> Tensor:
    """Return the length of every axis, laid out like `Layer.flat`: (C d + C,), from .1 to 1.

    features (n, d) are the patients' inputs to the layer.
    """
    axes = 1 / (fisher_information(layer, features, generator) + _LEAST_INFORMATION)
    return (axes / axes.max()).clamp(min=SHORTEST)


def fisher_information(layer: Layer, features: Tensor, generator: torch.Generator) -> Tensor:
    """Return the diagonal of the Fisher information, laid out like `Layer.flat`: (C d + C,).

    The slope of log p_y in logit c is [y = c] - p_c.
    """
    some = features[torch.randperm(len(features), generator=generator)[:PATIENTS]]
    chances = layer(some).softmax(dim=1)  # (n, C)
    drawn = torch.multinomial(chances, 1, generator=generator)
    slopes = -chances.scatter_add(1, drawn, -torch.ones_like(chances[:, :1]))
    squares = slopes.square()
    weights = squares.T @ some.square() / len(some)
    return torch.cat([weights.flatten(), squares.mean(dim=0)])


class AuthorsBalls(Settings):
    """What good enough means, and how it is measured."""

    authors: ClassVar[dict[str, Any]] = {"radius": "midpoint"}

    preset: Literal["ours", "authors"] = "ours"
    epsilon: float = Field(default=0.7, ge=0, le=1)
    epsilon_of: Literal["accuracy", "own_accuracy"] = "accuracy"
    directions: int = Field(default=500, ge=1, le=100_000)
    radius: RadiusKind = "lower_bound"

    @model_validator(mode="before")
    @classmethod
    def _with_preset(cls, values: Any) -> Any:
        """Return the preset's values where none is given."""
        if isinstance(values, dict) and values.get("preset") == "authors":
            return {**cls.authors, **values}
        return values


class AuthorsMeeting(AuthorsBalls):
    """And how far a model is from a hospital's."""

    masked_distance: bool = False  # eq. 2 multiplies every difference by the centre's own value


class AuthorsConvex(AuthorsMeeting):
    """Whole models: balls as in the paper, or ellipsoids as in the authors' code."""

    shape: Literal["ball", "ellipsoid"] = "ball"


class AuthorsNetwork(AuthorsMeeting):
    """Networks: how hidden neurons are merged.

    The mask, `masked_distance`, moves no figure of the authors' and is not in the preset.
    """

    authors: ClassVar[dict[str, Any]] = {
        **AuthorsBalls.authors,
        "skip_first_cluster": True,
        "retraining": "authors",
    }

    clusters: int = Field(default=100, ge=1)
    neuron_epsilon: float = Field(default=1.0, gt=0)
    divide_by_count: bool = True
    skip_first_cluster: bool = False
    retraining: Retraining = "zeros"


def measured_ball(
    layer: Layer,
    features: Tensor,
    labels: Tensor,
    options: AuthorsBalls,
    generator: torch.Generator,
    axes: Tensor | None = None,
    cell: int = 1,
) -> GoodEnough:
    """Return the ball of output layers around `layer`, on patients that it was not trained on.

    With `axes` (C d + C,) it is an ellipsoid. The radius is about `cell` patients, or 0.
    """
    epsilon = options.epsilon
    if options.epsilon_of == "own_accuracy":
        epsilon *= accuracy_of(layer, features, labels)
    along = directions(options.directions, layer.flat.numel(), generator)
    along = along if axes is None else along * axes
    found = good_enough_ball(layer, features, labels, epsilon, along, cell)
    if options.radius == "midpoint" and found.radius > 0:
        width = LAYER_WIDTH if axes is None else ELLIPSOID_WIDTH
        return replace(found, radius=midpoint(found.radius, width))
    return found


def certified_radius(
    layer: Layer, features: Tensor, labels: Tensor, ball: GoodEnough, axes: Tensor | None = None
) -> float:
    """Return within which radius every model is good enough, in any direction.

    By moving class c's parameters along their axes its logit changes by at most
    l_c = sqrt(sum_i (axes_ci x_i)^2), so a margin by sqrt(l_y^2 + l_j^2): sqrt(2(|x|^2 + 1)) in a
    ball.
    """
    logits = layer(features)
    own, right = logits.gather(1, labels[:, None]), logits.argmax(dim=1) == labels
    rank = int(right.sum()) - ceil(ball.needed * len(labels) - 1e-9) + 1
    if not 1 <= rank <= int(right.sum()):
        return 0.0 if rank < 1 else LARGEST_RADIUS
    inverse = (own - logits)[right].clamp(min=1e-30).reciprocal()
    inverse.scatter_(1, labels[right][:, None], 0.0)
    classes, width = inverse.shape[1], features.shape[1]
    squares = torch.ones(layer.flat.numel()) if axes is None else axes
    squares = squares.double().square()
    of_weights = squares[: classes * width].reshape(classes, width)
    reach = features[right].double().square() @ of_weights.T + squares[classes * width :]
    steepness = (reach + reach.gather(1, labels[right][:, None])).sqrt()
    rates = (inverse.double() * steepness).amax(dim=1)
    return min(1 / float(rates.kthvalue(len(rates) - rank + 1).values), LARGEST_RADIUS)


def measured_neurons(
    layer: Layer, inputs: Tensor, options: AuthorsNetwork, generator: torch.Generator
) -> Tensor:
    """Return the radius of every neuron of a hidden layer: (out,) float64."""
    along = directions(options.directions, inputs.shape[1] + 1, generator)
    radii = neuron_radii(
        layer, inputs, options.neuron_epsilon, along, divide_by_count=options.divide_by_count
    )
    if options.radius == "midpoint":
        radii = torch.tensor(
            [midpoint(radius, NEURON_WIDTH) for radius in radii.tolist()], dtype=torch.float64
        )
    return radii
