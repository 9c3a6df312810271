"""One cell of the GEMS grid: a data set, a kind of model, a number of nodes and a trial."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import torch

from erosion.common.algorithms.gems.balls import hidden_features
from erosion.common.algorithms.gems.retraining import fine_tune
from erosion.common.algorithms.gems.rounds import ConvexOptions, GemsOptions
from erosion.experiments.cells import Tick, Values
from erosion.experiments.papers.gems.aggregating import (
    averaged,
    ensemble_accuracy,
    intersected,
    network_gems,
)
from erosion.experiments.papers.gems.feature_pools import cifar10_pool, ham10000_pool
from erosion.experiments.papers.gems.fitting import Model, accuracy, fit, fit_for, logits
from erosion.experiments.papers.gems.mnist_pool import mnist_pool
from erosion.experiments.papers.gems.pools import Pool

POOLS: Mapping[str, Callable[[Path | None, int], Pool]] = {
    "mnist": mnist_pool,
    "cifar10": cifar10_pool,
    "ham10000": ham10000_pool,
}
PUBLIC = (100, 300, 500, 1000)  # public samples to fine-tune on
DRAWS = 2  # of public samples, per trial


def run_cell(config: Values, data_dir: Path | None, tick: Tick) -> Values:
    """Train, aggregate and measure; `config` is that of a plan in `grid.py`."""
    trial = config["trial"]
    pool = POOLS[config["dataset"]](data_dir, trial)
    widths = [pool.train.inputs.shape[1], *config["hidden"], pool.classes]
    figures: dict[str, Any] = {}
    if (compares := config.get("compares")) is not None:
        for count in config["nodes"]:
            figures[str(count)] = _compared(config, pool, widths, count, trial)
            tick()
        return {compares: figures}
    if "majority" in config["parts"]:
        commonest = pool.train.labels.mode().values
        figures["majority"] = float((pool.test.labels == commonest).double().mean())
        tick()
    if "global" in config["parts"]:
        model = fit(widths, pool.train, _generator(trial, 0))
        figures["global"] = accuracy(model, pool.test)
        tick()
    for count in config["nodes"]:
        figures[str(count)] = _nodes(config, pool, widths, count, trial)
        tick()
    if "public" in config["parts"]:
        figures["public"] = _public_alone(pool, widths, trial)
        tick()
    return figures


def _nodes(config: Values, pool: Pool, widths: list[int], count: int, trial: int) -> dict[str, Any]:
    """All that is measured with one number of nodes."""
    nodes = pool.nodes(count)
    models = [
        fit(widths, train, _generator(trial, 10 * count + number))
        for number, (train, _) in enumerate(nodes)
    ]
    locals_ = [accuracy(model, pool.test) for model in models]
    mean = averaged(models)
    every = [logits(model, pool.test.inputs) for model in models]
    figures: dict[str, Any] = {
        "local": {"mean": fmean(locals_), "between_nodes": pstdev(locals_)},
        "averaged": accuracy(mean, pool.test),
        "ensemble": ensemble_accuracy(every, pool.test.labels),
        "tuned_averaged": _tuned(mean, pool, trial, 20),
        "tuned_local": _tuned_locals(models, pool, widths, trial),
        "gems": {},
    }
    seed = 10 * trial + count
    for name, raw in config["variants"][str(count)].items():
        tuning = raw["tuning_epochs"]
        if len(widths) == 2:
            convex = ConvexOptions.model_validate(raw["options"])
            found = intersected([], [m[0] for m in models], nodes, convex, seed)
            figures["gems"][name] = _of_aggregate(found.model, found.figures, pool, trial, tuning)
            continue
        options = GemsOptions.model_validate(raw["options"])
        found, hidden, outputs = network_gems(models, nodes, pool.classes, options, seed)
        figures["gems"][name] = _of_aggregate(found.model, found.figures, pool, trial, tuning)
        for epsilon in raw.get("epsilons", ()):
            stricter = options.model_copy(update={"epsilon": epsilon})
            other = intersected([hidden], outputs, nodes, stricter, seed)
            figures["gems"][f"{name}, epsilon {epsilon}"] = {
                "accuracy": accuracy(other.model, pool.test),
                **other.figures,
            }
    return figures


def options_of(config: Values) -> list[ConvexOptions | GemsOptions]:
    """Every variant's options."""
    kind = ConvexOptions if not config["hidden"] else GemsOptions
    variants = config.get("variants", {})
    groups = [variants] if "compares" in config else [variants[k] for k in sorted(variants)]
    return [
        kind.model_validate(group[name]["options"]) for group in groups for name in sorted(group)
    ]


def _compared(
    config: Values, pool: Pool, widths: list[int], count: int, trial: int
) -> dict[str, Any]:
    """Some settings beside each other, on the same local models as `_nodes` has."""
    nodes = pool.nodes(count)
    models = [
        fit(widths, train, _generator(trial, 10 * count + number))
        for number, (train, _) in enumerate(nodes)
    ]
    seed = 10 * trial + count
    figures: dict[str, Any] = {
        "averaged": accuracy(averaged(models), pool.test),
        "tuned_local": _tuned_locals(models, pool, widths, trial, PUBLIC, DRAWS),
    }
    for name, raw in config["variants"].items():
        if len(widths) == 2:
            convex = ConvexOptions.model_validate(raw["options"])
            found = intersected([], [m[0] for m in models], nodes, convex, seed)
        else:
            options = GemsOptions.model_validate(raw["options"])
            found, _, _ = network_gems(models, nodes, pool.classes, options, seed)
        figures[name] = _of_aggregate(found.model, found.figures, pool, trial, raw["tuning_epochs"])
    return figures


def _of_aggregate(
    model: Model, figures: dict[str, Any], pool: Pool, trial: int, epochs: int
) -> dict[str, Any]:
    tuned = _tuned(model, pool, trial, epochs)
    return {"accuracy": accuracy(model, pool.test), "tuned": tuned, **figures}


def _tuned(model: Model, pool: Pool, trial: int, epochs: int) -> dict[str, float]:
    """Test accuracy after training the last layer on so many public samples."""
    *hidden, output = model
    features = hidden_features(hidden, pool.validation.inputs)
    tested = hidden_features(hidden, pool.test.inputs)

    def once(count: int, draw: int) -> float:
        generator = _generator(trial, 1000 + draw)
        rows = torch.randperm(len(pool.validation), generator=generator)[:count]
        labels = pool.validation.labels[rows]
        layer = fine_tune(output, features[rows], labels, generator, epochs=epochs)
        right = layer(tested).argmax(dim=1) == pool.test.labels
        return float(right.double().mean())

    return {str(count): fmean(once(count, draw) for draw in range(DRAWS)) for count in PUBLIC}


def _tuned_locals(
    models: list[Model],
    pool: Pool,
    widths: list[int],
    trial: int,
    counts: Sequence[int] = (1000,),
    draws: int = 1,
) -> dict[str, float]:
    """Mean test accuracy of the local models after training all layers on public samples."""

    def once(count: int, draw: int) -> float:
        generator = _generator(trial, 2000 + draw)
        public = pool.validation.drawn(count, generator)
        tuned = (
            fit_for(model, widths, public, generator, learning_rate=0.001, epochs=5)
            for model in models
        )
        return fmean(accuracy(model, pool.test) for model in tuned)

    return {str(count): fmean(once(count, draw) for draw in range(draws)) for count in counts}


def _public_alone(pool: Pool, widths: list[int], trial: int) -> dict[str, float]:
    """Test accuracy of a model trained on the public samples and nothing else."""

    def once(count: int, draw: int) -> float:
        generator = _generator(trial, 1000 + draw)
        public = pool.validation.drawn(count, generator)
        model = fit_for(None, widths, public, generator, learning_rate=0.01, epochs=20)
        return accuracy(model, pool.test)

    return {str(count): fmean(once(count, draw) for draw in range(DRAWS)) for count in PUBLIC}


def _generator(trial: int, purpose: int) -> torch.Generator:
    return torch.Generator().manual_seed(100_000 * (trial + 1) + purpose)
