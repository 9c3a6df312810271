"""Measures the ball around one hospital's own model, by the study's options."""

from dataclasses import replace

import torch
from torch import Tensor

from erosion.common.gems.bisection import (
    ELLIPSOID_WIDTH,
    LAYER_WIDTH,
    NEURON_WIDTH,
    midpoint,
)
from erosion.common.gems.directions import directions
from erosion.common.gems.layers import Layer
from erosion.common.gems.linear_ball import GoodEnough, good_enough_ball
from erosion.common.gems.neuron_balls import neuron_radii
from erosion.common.gems.options import BallOptions, GemsOptions


def measured_ball(
    layer: Layer,
    features: Tensor,
    labels: Tensor,
    options: BallOptions,
    generator: torch.Generator,
    axes: Tensor | None = None,
    cell: int = 1,
) -> GoodEnough:
    """The ball of output layers around `layer`, on patients that it was not trained on.

    With `axes` (C d + C,) it is an ellipsoid. The radius is about `cell` patients, or 0.
    """
    epsilon = options.epsilon
    if options.epsilon_of == "own_accuracy":
        epsilon *= accuracy_of(layer, features, labels)
    along = directions(options.directions, layer.flat.numel(), generator)
    found = good_enough_ball(layer, features, labels, epsilon, along, axes, cell)
    if options.radius == "midpoint" and found.radius > 0:
        width = LAYER_WIDTH if axes is None else ELLIPSOID_WIDTH
        return replace(found, radius=midpoint(found.radius, width))
    return found


def measured_neurons(
    layer: Layer, inputs: Tensor, options: GemsOptions, generator: torch.Generator
) -> Tensor:
    """The radius of every neuron of a hidden layer: (out,) float64."""
    along = directions(options.directions, inputs.shape[1] + 1, generator)
    radii = neuron_radii(
        layer,
        inputs,
        options.neuron_epsilon,
        along,
        divide_by_count=options.divide_by_count,
    )
    if options.radius == "midpoint":
        radii = torch.tensor(
            [midpoint(radius, NEURON_WIDTH) for radius in radii.tolist()], dtype=torch.float64
        )
    return radii


def accuracy_of(layer: Layer, features: Tensor, labels: Tensor) -> float:
    """Share of patients that an output layer predicts rightly."""
    return float((layer(features).argmax(dim=1) == labels).double().mean())
