"""GEMS over nodes in one process: what is done at each node, and between them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from erosion.common.algorithms.gems.balls import (
    Layer,
    balls,
    fisher_axes,
    hidden_features,
    layer_of_flat,
    layer_of_neurons,
)
from erosion.common.algorithms.gems.meeting import (
    Found,
    Meeting,
    MergedLayer,
    Spaces,
    descend,
    meet_balls,
    merge_neurons,
)
from erosion.common.algorithms.gems.retraining import retrain
from erosion.common.algorithms.gems.rounds import (
    ConvexOptions,
    GemsOptions,
    MeetingOptions,
    accuracy_of,
    measured_ball,
    measured_neurons,
)
from erosion.experiments.papers.gems.fitting import Model
from erosion.experiments.papers.gems.pools import Samples

Node = tuple[Samples, Samples]  # its training and validation part


@dataclass(frozen=True, slots=True, eq=False)
class Aggregate:
    """A common model, and what is to be said of it."""

    model: Model
    figures: dict[str, Any]


def merged_hidden(
    models: Sequence[Model], nodes: Sequence[Node], options: GemsOptions, seed: int
) -> MergedLayer:
    """One hidden layer of all nodes' first layers."""
    layers = [model[0] for model in models]
    radii = [
        measured_neurons(layer, validation.inputs, options, _generator(seed, number))
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
    hidden: Layer, nodes: Sequence[Node], classes: int, options: GemsOptions, seed: int
) -> list[Layer]:
    """Each node's new output layer above the common hidden one."""
    outputs = []
    for number, (train, _) in enumerate(nodes):
        features = hidden_features([hidden], train.inputs)
        generator = _generator(seed, 100 + number)
        (layer,) = retrain(features, train.labels, (), classes, options.retraining, generator)
        outputs.append(layer)
    return outputs


def intersected(
    hidden: Sequence[Layer],
    outputs: Sequence[Layer],
    nodes: Sequence[Node],
    options: MeetingOptions,
    seed: int,
) -> Aggregate:
    """The output layer that all nodes find good enough, or the nearest to that."""
    features = [hidden_features(hidden, validation.inputs) for _, validation in nodes]
    labels = [validation.labels for _, validation in nodes]
    elliptic = isinstance(options, ConvexOptions) and options.shape == "ellipsoid"
    axes = [
        fisher_axes(layer, x, _generator(seed, 300 + number)) if elliptic else None
        for number, (layer, x) in enumerate(zip(outputs, features, strict=True))
    ]
    found = [
        measured_ball(layer, x, y, options, _generator(seed, 200 + number), along)
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
        "certified_radii": [ball.certified for ball in found],
        "reached": [ball.is_reached for ball in found],
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
    models: Sequence[Model],
    nodes: Sequence[Node],
    classes: int,
    options: GemsOptions,
    seed: int,
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
    """Every parameter's mean over the models."""
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


def _generator(seed: int, purpose: int) -> torch.Generator:
    return torch.Generator().manual_seed(1000 * seed + purpose)
