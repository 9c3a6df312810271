"""A hospital's training above merged layers, and on public data (GEMS, sections 3.2 and 3.3)."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from erosion_common.algorithms.gems.balls import Layer, layer_of_flat, split_layers
from erosion_common.learning.local_sgd import Samples, train_locally
from erosion_common.learning.trainable import flat_parameters
from erosion_common.learning.training import Training
from erosion_common.tasks.task import Loss

Retraining = Literal["zeros", "authors"]

# From zeros nothing is left of the classes that a hospital does not have; a random start differs
# from hospital to hospital, and the mean of the layers keeps what no patient has trained.
TRAINING: dict[Retraining, Training] = {
    "zeros": Training(epochs=3, batch_size=32, learning_rate=0.1),
    "authors": Training(epochs=10, batch_size=32, optimizer="adam", learning_rate=0.001),
}


def training_of(how: Retraining, smallest_batch: int = 1) -> Training:
    """Return its settings, in mini-batches of 32, or of `smallest_batch` samples if larger."""
    training = TRAINING[how]
    return training.model_copy(update={"batch_size": max(training.batch_size, smallest_batch)})


def retrain(
    features: Tensor,
    labels: Tensor,
    hidden: Sequence[int],
    classes: int,
    how: Retraining,
    generator: torch.Generator,
    *,
    loss: Loss = cross_entropy,
    smallest_batch: int = 1,
) -> tuple[Layer, ...]:
    """Return new layers on `features` (n, d): hidden ones of these widths, then the output layer.

    "zeros": the output layer starts at 0, and SGD at 0.1 makes 3 passes. "authors": it starts at
    N(0, .05^2), and Adam at 0.001 makes 10. Hidden layers start Glorot-uniform in both. `loss` is
    of a mini-batch's logits and `labels`. No mini-batch has fewer samples than `smallest_batch`, as
    long as there are as many.
    """
    widths = [features.shape[1], *hidden, classes]
    model = perceptron(widths, generator)
    output = model[-1]
    assert isinstance(output, nn.Linear)
    if how == "zeros":
        nn.init.zeros_(output.weight)
    else:
        nn.init.normal_(output.weight, std=0.05, generator=generator)
    start = flat_parameters(model)
    samples = Samples(features, labels, loss, smallest_batch=smallest_batch)
    training = training_of(how, smallest_batch)
    result = train_locally(model, start, samples, training, generator)
    return split_layers(start + result.delta, widths)


def perceptron(widths: Sequence[int], generator: torch.Generator) -> nn.Sequential:
    """Return linear layers with ReLU, Glorot-uniform (torch's start is 2.4 times smaller)."""
    layers: list[nn.Module] = []
    for width_in, width_out in pairwise(widths):
        linear = _unset_linear(width_in, width_out)
        nn.init.xavier_uniform_(linear.weight, generator=generator)
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _unset_linear(width_in: int, width_out: int) -> nn.Linear:
    linear: nn.Linear = nn.utils.skip_init(nn.Linear, width_in, width_out)  # type: ignore[no-untyped-call]
    return linear


def tuning(epochs: int, smallest_batch: int) -> Training:
    """Return Adam at 0.01 in mini-batches of 32, or of `smallest_batch` samples if larger."""
    batch_size = max(32, smallest_batch)
    return Training(epochs=epochs, batch_size=batch_size, optimizer="adam", learning_rate=0.01)


def fine_tune(
    layer: Layer,
    features: Tensor,
    labels: Tensor,
    generator: torch.Generator,
    *,
    loss: Loss = cross_entropy,
    epochs: int,
    smallest_batch: int = 1,
) -> Layer:
    """Return the output layer after `tuning` on public features (n, d): 20 passes (the authors: 5).

    `loss` is of a mini-batch's logits and `labels`. No mini-batch has fewer samples than
    `smallest_batch`, as long as there are as many.
    """
    classes, width = layer.weight.shape
    training = tuning(epochs, smallest_batch)
    model = perceptron((width, classes), generator)  # its start is replaced by the layer
    samples = Samples(features, labels, loss, smallest_batch=smallest_batch)
    result = train_locally(model, layer.flat, samples, training, generator)
    return layer_of_flat(layer.flat + result.delta, width, classes)
