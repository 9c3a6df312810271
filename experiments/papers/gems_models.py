"""Nodes, local models and their aggregates for the GEMS experiment (Guha and Smith)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from erosion.sources import pictures
from erosion.sources.mnist import read_mnist
from erosion.sources.pictures import read_ham10000, read_jpegs
from erosion.sources.source import data_folder, existing_file
from erosion_common.algorithms.gems.balls import (
    Layer,
    balls,
    hidden_features,
    layer_of_flat,
    layer_of_neurons,
    split_layers,
)
from erosion_common.algorithms.gems.meeting import (
    Found,
    Meeting,
    MergedLayer,
    Spaces,
    descend,
    meet_balls,
    merge_neurons,
)
from erosion_common.algorithms.gems.retraining import perceptron, retrain
from erosion_common.algorithms.gems.rounds import accuracy_of
from erosion_common.learning.models import flat_parameters
from experiments.papers.gems_authors import (
    AuthorsConvex,
    AuthorsMeeting,
    AuthorsNetwork,
    certified_radius,
    fisher_axes,
    measured_ball,
    measured_neurons,
)

# Which labels each node has: the paper's for ten classes. For the seven of HAM10000 it does not
# say; these are ours.
LABELS: dict[tuple[int, int], Sequence[Sequence[int]]] = {
    (10, 2): ((0, 1, 2, 3, 4), (5, 6, 7, 8, 9)),
    (10, 3): ((0, 1, 2), (3, 4, 5), (6, 7, 8, 9)),
    (10, 5): ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9)),
    (7, 2): ((0, 1, 2, 3), (4, 5, 6)),
    (7, 3): ((0, 1), (2, 3), (4, 5, 6)),
    (7, 5): ((0,), (1,), (2,), (3, 4), (5, 6)),
}


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Inputs with their labels."""

    inputs: Tensor  # (n, d) float32
    labels: Tensor  # (n,) int64

    def __len__(self) -> int:
        return len(self.labels)

    def of_labels(self, labels: Sequence[int]) -> "Samples":
        """Return those of some classes."""
        return self.only(torch.isin(self.labels, torch.tensor(labels)))

    def only(self, rows: Tensor) -> "Samples":
        """Return some rows, by number or by a mask."""
        return Samples(self.inputs[rows], self.labels[rows])

    def drawn(self, count: int, generator: torch.Generator) -> "Samples":
        """Draw some at random, without replacement."""
        return self.only(torch.randperm(len(self), generator=generator)[:count])


@dataclass(frozen=True, slots=True)
class Pool:
    """All that an experiment is made of."""

    train: Samples
    validation: Samples
    test: Samples
    classes: int

    def nodes(self, count: int) -> list[tuple[Samples, Samples]]:
        """Return each node's training and validation part; the test part is everyone's."""
        groups = LABELS[self.classes, count]
        return [(self.train.of_labels(own), self.validation.of_labels(own)) for own in groups]


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


Node = tuple[Samples, Samples]  # its training and validation part


@dataclass(frozen=True, slots=True, eq=False)
class Aggregate:
    """A common model, and what is to be said of it."""

    model: Model
    figures: dict[str, Any]


def merged_hidden(
    models: Sequence[Model], nodes: Sequence[Node], options: AuthorsNetwork, seed: int
) -> MergedLayer:
    """Return one hidden layer of all nodes' first layers."""
    layers = [model[0] for model in models]
    radii = [
        measured_neurons(layer, validation.inputs, options, _drawing(seed, number))
        for number, (layer, (_, validation)) in enumerate(zip(layers, nodes, strict=True))
    ]
    every = balls(torch.cat([layer.neurons for layer in layers]), torch.cat(radii))
    return merge_neurons(
        every,
        options.clusters,
        seed=seed,
        skip_first_cluster=options.skip_first_cluster,
        masked_distance=options.masked_distance,
    )


def retrained(
    hidden: Layer, nodes: Sequence[Node], classes: int, options: AuthorsNetwork, seed: int
) -> list[Layer]:
    """Return each node's new output layer above the common hidden one."""
    outputs = []
    for number, (train, _) in enumerate(nodes):
        features = hidden_features([hidden], train.inputs)
        generator = _drawing(seed, 100 + number)
        (layer,) = retrain(features, train.labels, (), classes, options.retraining, generator)
        outputs.append(layer)
    return outputs


def intersected(
    hidden: Sequence[Layer],
    outputs: Sequence[Layer],
    nodes: Sequence[Node],
    options: AuthorsMeeting,
    seed: int,
) -> Aggregate:
    """Return the output layer that all nodes find good enough, or the nearest to that."""
    features = [hidden_features(hidden, validation.inputs) for _, validation in nodes]
    labels = [validation.labels for _, validation in nodes]
    elliptic = isinstance(options, AuthorsConvex) and options.shape == "ellipsoid"
    axes = [
        fisher_axes(layer, x, _drawing(seed, 300 + number)) if elliptic else None
        for number, (layer, x) in enumerate(zip(outputs, features, strict=True))
    ]
    found = [
        measured_ball(layer, x, y, options, _drawing(seed, 200 + number), along)
        for number, (layer, x, y, along) in enumerate(
            zip(outputs, features, labels, axes, strict=True)
        )
    ]
    radii = torch.tensor([ball.radius for ball in found], dtype=torch.float64)
    centres = torch.stack([layer.flat for layer in outputs])
    scales = torch.stack([1 / along for along in axes if along is not None]) if elliptic else None
    if options.masked_distance:
        scales = centres
    point, meeting = _met(centres, scales, radii)
    classes, width = outputs[0].weight.shape
    output = layer_of_flat(point.float(), width, classes)
    figures = {
        "residual": meeting.residual,
        "steps": meeting.steps,
        "gaps": meeting.gaps.tolist(),
        "radii": radii.tolist(),
        "certified_radii": [
            certified_radius(layer, x, y, ball, along)
            for layer, x, y, ball, along in zip(outputs, features, labels, found, axes, strict=True)
        ],
        "reached": [ball.accuracy >= ball.needed - 1e-9 for ball in found],
        "own_checks": [accuracy_of(output, x, y) for x, y in zip(features, labels, strict=True)],
    }
    return Aggregate((*hidden, output), figures)


def _met(centres: Tensor, scales: Tensor | None, radii: Tensor) -> tuple[Tensor, Meeting | Found]:
    if scales is None:
        return meet_balls(balls(centres, radii))
    spaces = Spaces(centres.double(), radii, torch.ones_like(radii), scales.double())
    found = descend(spaces, spaces.mean)
    return found.point, found


def network_gems(
    models: Sequence[Model], nodes: Sequence[Node], classes: int, options: AuthorsNetwork, seed: int
) -> tuple[Aggregate, Layer, list[Layer]]:
    """GEMS for one hidden layer; also the merged layer and the nodes' retrained ones above it."""
    merged = merged_hidden(models, nodes, options, seed)
    hidden = layer_of_neurons(merged.neurons)
    outputs = retrained(hidden, nodes, classes, options, seed)
    found = intersected([hidden], outputs, nodes, options, seed)
    sizes = {
        "hidden": len(merged.neurons),
        "offered": merged.offered,
        "merged": merged.merged,
        "lost": merged.lost,
    }
    return Aggregate(found.model, {**found.figures, **sizes}), hidden, outputs


def averaged(models: Sequence[Model]) -> Model:
    """Return every parameter's mean over the models."""
    return tuple(
        Layer(
            torch.stack([layer.weight for layer in layers]).mean(dim=0),
            torch.stack([layer.bias for layer in layers]).mean(dim=0),
        )
        for layers in zip(*models, strict=True)
    )


def ensemble_accuracy(logits: Sequence[Tensor], labels: Tensor) -> dict[str, float]:
    """Models that vote: by the mean of their probabilities, and by probabilities rounded first.

    The authors' code rounds, so that an undecided model has no vote.
    """
    probabilities = torch.stack([each.double().softmax(dim=1) for each in logits])
    votes = {"probabilities": probabilities.mean(dim=0), "rounded": probabilities.round().sum(0)}
    return {
        name: float((summed.argmax(dim=1) == labels).double().mean())
        for name, summed in votes.items()
    }


def _drawing(seed: int, purpose: int) -> torch.Generator:
    return torch.Generator().manual_seed(1000 * seed + purpose)


EPOCHS = 6
FEATURE_BATCH = 64
FEATURES = 512


def cifar10_pool(data_dir: Path | None, trial: int) -> Pool:
    """15,000 images for the features, then 25,000 to train, 5,000 to validate; 5,000 to test."""
    generator = torch.Generator().manual_seed(trial)
    folder = data_folder(data_dir, pictures.CIFAR10)
    images, labels = _cifar10(existing_file(folder, pictures.TRAINING_FILE))
    order = torch.randperm(len(labels), generator=generator)
    first, train, validation = torch.split(order[:45_000], [15_000, 25_000, 5_000])
    network = _trained(images[first], labels[first], 10, generator)
    test_images, test_labels = _cifar10(existing_file(folder, pictures.TEST_FILE))
    test = torch.randperm(len(test_labels), generator=generator)[:5_000]
    return Pool(
        _features(network, images[train], labels[train]),
        _features(network, images[validation], labels[validation]),
        _features(network, test_images[test], test_labels[test]),
        classes=10,
    )


def ham10000_pool(data_dir: Path | None, trial: int) -> Pool:
    """Return two thirds of the lesions for the features; of the others 60, 20 and 20 %.

    A lesion's pictures stay together. Every part is balanced, by turning and mirroring pictures of
    rare diagnoses: 2,000 of each for the features, then 1,000, 300 and 300.
    """
    generator = torch.Generator().manual_seed(trial)
    pictures = read_ham10000(data_dir)
    images = torch.from_numpy(pictures.images).permute(0, 3, 1, 2).contiguous()
    labels, lesions = torch.from_numpy(pictures.labels), torch.from_numpy(pictures.lesions)
    parts = _by_lesion(lesions, (0.66, 0.204, 0.068, 0.068), generator)
    counts = (2_000, 1_000, 300, 300)
    first, train, validation, test = (
        _balanced(images[rows], labels[rows], count, generator)
        for rows, count in zip(parts, counts, strict=True)
    )
    network = _trained(*first, 7, generator)
    return Pool(
        _features(network, *train),
        _features(network, *validation),
        _features(network, *test),
        classes=7,
    )


def _cifar10(path: Path) -> tuple[Tensor, Tensor]:
    """Images (n, 3, 32, 32) uint8 and labels (n,)."""
    jpegs = read_jpegs(path)
    images = torch.from_numpy(jpegs.images(np.arange(len(jpegs.labels))))
    return images.permute(0, 3, 1, 2).contiguous(), torch.from_numpy(jpegs.labels)


def _by_lesion(
    lesions: Tensor, shares: tuple[float, ...], generator: torch.Generator
) -> list[Tensor]:
    """Rows of each part; every lesion is in one part only."""
    distinct = torch.unique(lesions)
    order = distinct[torch.randperm(len(distinct), generator=generator)]
    cuts = (torch.tensor(shares).cumsum(0) * len(order)).round().long().tolist()
    edges = [0, *cuts[:-1], len(order)]
    return [
        torch.nonzero(torch.isin(lesions, order[low:high])).flatten()
        for low, high in pairwise(edges)
    ]


def _balanced(
    images: Tensor, labels: Tensor, count: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """`count` of each class: fewer pictures, or the same ones turned and mirrored."""
    chosen, classes = [], torch.unique(labels).tolist()
    for label in classes:
        rows = torch.nonzero(labels == label).flatten()
        rows = rows[torch.randperm(len(rows), generator=generator)]
        copies = [_turned(images[rows], number) for number in range(-(-count // len(rows)))]
        chosen.append(torch.cat(copies)[:count])
    return torch.cat(chosen), torch.tensor(classes).repeat_interleave(count)


def _turned(images: Tensor, number: int) -> Tensor:
    """Return one of the eight ways to lay a square picture; 0 leaves it as it is."""
    mirrored = images.flip(3) if number // 4 % 2 else images
    return mirrored.rot90(number % 4, (2, 3))


def _trained(
    images: Tensor, labels: Tensor, classes: int, generator: torch.Generator
) -> nn.Sequential:
    """Return three convolutions (32, 64, 128) and 512 units, trained with a last layer."""
    side = images.shape[-1] // 8
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**31, (1,), generator=generator)))
        blocks: list[nn.Module] = []
        for channels_in, channels_out in ((3, 32), (32, 64), (64, 128)):
            convolution = nn.Conv2d(channels_in, channels_out, 3, padding=1)
            blocks += [convolution, nn.ReLU(), nn.MaxPool2d(2)]
        dense = nn.Linear(128 * side * side, FEATURES)
        network = nn.Sequential(*blocks, nn.Flatten(), dense, nn.ReLU())
        output = nn.Linear(FEATURES, classes)
    optimizer = torch.optim.Adam([*network.parameters(), *output.parameters()], lr=0.001)
    for _ in range(EPOCHS):
        order = torch.randperm(len(labels), generator=generator)
        for rows in torch.split(order, FEATURE_BATCH):
            optimizer.zero_grad()
            logits = output(network(_scaled(images[rows])))
            torch.autograd.backward(nn.functional.cross_entropy(logits, labels[rows]))
            optimizer.step()
    return network


@torch.no_grad()
def _features(network: nn.Sequential, images: Tensor, labels: Tensor) -> Samples:
    parts = [network(_scaled(part)) for part in torch.split(images, 500)]
    return Samples(torch.cat(parts), labels)


def _scaled(images: Tensor) -> Tensor:
    return images.float() / 255 - 0.5


SPLIT_SEED = 0


def mnist_pool(data_dir: Path | None, trial: int) -> Pool:
    """Pixels divided by 255, as in the authors' baselines; the same in every trial."""
    del trial
    images, labels = read_mnist(data_folder(data_dir, "mnist"), "train")
    every = Samples(
        torch.tensor(images.reshape(len(images), -1)).float() / 255, torch.from_numpy(labels)
    )
    order = torch.randperm(len(every), generator=torch.Generator().manual_seed(SPLIT_SEED))
    train, validation, test = (
        every.only(part) for part in torch.split(order, [50_000, 5_000, 5_000])
    )
    return Pool(train, validation, test, classes=10)
