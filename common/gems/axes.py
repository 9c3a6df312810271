"""The axes of an ellipsoid of good-enough output layers, as in the authors' code for convex models.

A parameter that the predictions hardly depend on may move further than another. How much they
depend on it is its Fisher information, the mean squared slope of the log likelihood of a class that
the model itself draws. Like theirs it is estimated on 200 patients and one drawn class for each:
patients who are predicted rightly say little that way, and most axes stay long. With the exact
expectation in place of the draw, ellipsoids of five MNIST nodes no longer held the models' mean.
"""

import torch
from torch import Tensor

from erosion.common.gems.layers import Layer

PATIENTS = 200  # that the information is estimated on
SHORTEST = 0.1  # of the longest axis, which is 1
_LEAST_INFORMATION = 1e-5  # added, so that no axis is without end


def fisher_axes(layer: Layer, features: Tensor, generator: torch.Generator) -> Tensor:
    """The length of every axis, laid out like `Layer.flat`: (C d + C,), from .1 to 1.

    features (n, d) are the patients' inputs to the layer.
    """
    axes = 1 / (fisher_information(layer, features, generator) + _LEAST_INFORMATION)
    return (axes / axes.max()).clamp(min=SHORTEST)


def fisher_information(layer: Layer, features: Tensor, generator: torch.Generator) -> Tensor:
    """The diagonal of the Fisher information, laid out like `Layer.flat`: (C d + C,).

    The slope of log p_y in logit c is [y = c] - p_c.
    """
    some = features[torch.randperm(len(features), generator=generator)[:PATIENTS]]
    chances = layer(some).softmax(dim=1)  # (n, C)
    drawn = torch.multinomial(chances, 1, generator=generator)
    slopes = -chances.scatter_add(1, drawn, -torch.ones_like(chances[:, :1]))
    squares = slopes.square()
    weights = squares.T @ some.square() / len(some)
    return torch.cat([weights.flatten(), squares.mean(dim=0)])


def problem_with_axes(axes: Tensor) -> str | None:
    """Why no honest hospital sends these axes, or None."""
    shortest, longest = float(axes.min()), float(axes.max())
    if shortest >= SHORTEST - 1e-6 and longest <= 1 + 1e-6:
        return None
    return f"axes from {shortest:g} to {longest:g} are not between {SHORTEST:g} and 1"
