"""Fine-tuning a model on a little public data that the coordinator holds (GEMS, section 3.3)."""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from erosion.common.gems.layers import Layer, layer_of_flat
from erosion.common.gems.retraining import perceptron
from erosion.common.learning.local_sgd import Samples, train_locally
from erosion.common.learning.training import Training
from erosion.common.tasks.task import Loss


def tuning(epochs: int, smallest_batch: int) -> Training:
    """Adam at 0.01 in mini-batches of 32, or of `smallest_batch` samples if these are more."""
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
    """The output layer after `tuning` on public features (n, d): 20 passes (the authors: 5).

    `loss` is of a mini-batch's logits and `labels`. No mini-batch has fewer samples than
    `smallest_batch`, as long as there are as many.
    """
    classes, width = layer.weight.shape
    training = tuning(epochs, smallest_batch)
    model = perceptron((width, classes), generator)  # its start is replaced by the layer
    samples = Samples(features, labels, loss, smallest_batch=smallest_batch)
    result = train_locally(model, layer.flat, samples, training, generator)
    return layer_of_flat(layer.flat + result.delta, width, classes)
