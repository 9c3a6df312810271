"""Fine-tuning a model on a little public data that the coordinator holds (GEMS, section 3.3)."""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from erosion.common.gems.layers import Layer, layer_of_flat
from erosion.common.gems.retraining import perceptron
from erosion.common.learning.local_sgd import Samples, train_locally
from erosion.common.learning.training import Training


def fine_tune(
    layer: Layer, features: Tensor, labels: Tensor, generator: torch.Generator, *, epochs: int = 20
) -> Layer:
    """The output layer after Adam at 0.01 on public features (n, d): 20 passes (the authors: 5)."""
    classes, width = layer.weight.shape
    training = Training(epochs=epochs, batch_size=32, optimizer="adam", learning_rate=0.01)
    model = perceptron((width, classes), generator)  # its start is replaced by the layer
    samples = Samples(features, labels, cross_entropy)
    result = train_locally(model, layer.flat, samples, training, generator)
    return layer_of_flat(layer.flat + result.delta, width, classes)
