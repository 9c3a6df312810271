"""A hospital's passengers and the authors' model: a layer of two outputs with log-softmax."""

from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray

from erosion.sources.titanic import AgeGroup, hospitals_of, load_passengers, split_indices

PENALTY = 1e-3  # times half the squared norm of the parameters, the bias included
Values = NDArray[Any]  # float32


def first_parameters(seed: int) -> list[Values]:
    """Weights (9, 2) from a normal of deviation 1/3 cut off at two deviations, biases (2,) 0."""
    draws = np.random.default_rng(seed).normal(size=10_000)
    weights = draws[np.abs(draws) <= 2][:18] / 3
    return [weights.reshape(9, 2).astype(np.float32), np.zeros(2, np.float32)]


def hospital(context: Context) -> AgeGroup:
    """This node's passengers; if it is the user, half of them are for testing."""
    settings = context.run_config
    passengers = load_passengers(Path(str(settings["data-dir"])) if settings["data-dir"] else None)
    rows = split_indices(passengers, settings["split"], int(settings["seed"]))
    user, node = int(settings["user"]), int(context.node_config["partition-id"])
    return hospitals_of(passengers, rows, user)[node]


def probabilities(parameters: list[Values], inputs: Values) -> Values:
    """Of both outcomes: (n, 2)."""
    scores = np.exp(inputs @ parameters[0] + parameters[1])
    return scores / scores.sum(axis=1, keepdims=True)


def gradients(parameters: list[Values], inputs: Values, labels: Values) -> list[Values]:
    """Of the authors' loss, which is a mean over both outputs, too."""
    apart = (probabilities(parameters, inputs) - np.eye(2, dtype=np.float32)[labels]) / (
        2 * len(labels)
    )
    own = [inputs.T @ apart, apart.sum(axis=0)]
    return [of + np.float32(PENALTY) * at for of, at in zip(own, parameters, strict=True)]
