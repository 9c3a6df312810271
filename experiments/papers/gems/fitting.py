"""Local models as in the authors' code: Adam, dropout, early stopping on the training accuracy."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from erosion.common.algorithms.gems.balls import Layer, hidden_features, split_layers
from erosion.common.algorithms.gems.retraining import perceptron
from erosion.common.learning.models import flat_parameters
from erosion.experiments.papers.gems.pools import Samples

Model = tuple[Layer, ...]  # the last is the output layer; a convex model is that one alone

MOST_EPOCHS = 40
PATIENCE = {0: 5, 1: 3}  # epochs without a gain, by the number of hidden layers
BATCH = 32


def fit(widths: Sequence[int], samples: Samples, generator: torch.Generator) -> Model:
    """Train to the end: hidden layers start Glorot-uniform, a convex model at N(0, .05^2)."""
    hidden = len(widths) - 2
    network = perceptron(widths, generator)
    if not hidden:
        first = network[0]
        assert isinstance(first, nn.Linear)
        nn.init.normal_(first.weight, std=0.05, generator=generator)
    flat = flat_parameters(network)
    best, waited = 0.0, 0
    for accuracy in _epochs(flat, widths, samples, 0.001, MOST_EPOCHS, 0.5, generator):
        best, waited = (accuracy, 0) if accuracy > best else (best, waited + 1)
        if waited >= PATIENCE[min(hidden, 1)]:
            break  # with the last weights, not the best
    return split_layers(flat, widths)


def fit_for(
    model: Model | None,
    widths: Sequence[int],
    samples: Samples,
    generator: torch.Generator,
    *,
    learning_rate: float,
    epochs: int,
) -> Model:
    """Train all layers for a number of epochs without dropout, from `model` or from the start."""
    if model is None:
        flat = flat_parameters(perceptron(widths, generator))
    else:
        flat = torch.cat([layer.flat for layer in model])
    for _ in _epochs(flat, widths, samples, learning_rate, epochs, 0.0, generator):
        pass
    return split_layers(flat, widths)


def _epochs(
    flat: Tensor,
    widths: Sequence[int],
    samples: Samples,
    learning_rate: float,
    epochs: int,
    dropout: float,
    generator: torch.Generator,
) -> Iterator[float]:
    """Train `flat` in place, and yield the running training accuracy of every epoch.

    The gradient is written out: for networks this small it takes half the time of autograd's.
    """
    layers = split_layers(flat, widths)  # views of the one vector, and of its gradient
    gradient = torch.zeros_like(flat)
    slots = split_layers(gradient, widths)
    mean, square, steps = torch.zeros_like(flat), torch.zeros_like(flat), 0
    for _ in range(epochs):
        right = 0
        order = torch.randperm(len(samples), generator=generator)
        for rows in torch.split(order, BATCH):
            activations, masks = [samples.inputs[rows]], []
            for layer in layers[:-1]:
                outputs = layer(activations[-1])
                mask = (outputs > 0).float()
                if dropout:
                    kept = torch.rand(outputs.shape, generator=generator) >= dropout
                    mask = mask * kept / (1 - dropout)
                masks.append(mask)
                activations.append(outputs * mask)
            logits = layers[-1](activations[-1])
            labels = samples.labels[rows]
            right += int((logits.argmax(dim=1) == labels).sum())

            error = logits.softmax(dim=1)  # minus the truth: the log loss's slope in the logits
            error[torch.arange(len(rows)), labels] -= 1
            error /= len(rows)
            for depth in reversed(range(len(layers))):
                torch.mm(error.T, activations[depth], out=slots[depth].weight)
                slots[depth].bias.copy_(error.sum(dim=0))
                if depth:
                    error = error @ layers[depth].weight * masks[depth - 1]

            steps += 1  # of Adam, with its usual betas .9 and .999
            mean.lerp_(gradient, 0.1)
            square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
            deviation = (square / (1 - 0.999**steps)).sqrt_().add_(1e-8)
            flat.addcdiv_(mean, deviation, value=-learning_rate / (1 - 0.9**steps))
        yield right / len(samples)


def logits(model: Model, inputs: Tensor) -> Tensor:
    """(n, d) -> (n, classes)."""
    *hidden, output = model
    return output(hidden_features(hidden, inputs))


def accuracy(model: Model, samples: Samples) -> float:
    """Share of samples that the model predicts rightly."""
    return float((logits(model, samples.inputs).argmax(dim=1) == samples.labels).double().mean())
