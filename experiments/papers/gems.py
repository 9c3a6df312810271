"""The cells of GEMS (Guha and Smith, Model Aggregation via Good-Enough Model Spaces)."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import torch

from erosion_common.algorithms.gems.balls import hidden_features
from erosion_common.algorithms.gems.retraining import fine_tune
from experiments.cells import CellPlan, Tick, Values
from experiments.papers.gems_authors import AuthorsConvex, AuthorsNetwork
from experiments.papers.gems_models import (
    Model,
    Pool,
    accuracy,
    averaged,
    cifar10_pool,
    ensemble_accuracy,
    fit,
    fit_for,
    ham10000_pool,
    intersected,
    logits,
    mnist_pool,
    network_gems,
)

NODES = (2, 3, 5)
TRIALS = 5  # on MNIST
FEATURE_TRIALS = 3  # on CIFAR-10 and HAM10000, each with its features

MAJORITY = "mnist-majority"  # the cell's name

AUTHORS: dict[str, Any] = {"preset": "authors"}
THEIR_TUNING, OUR_TUNING = 5, 20  # epochs

# The paper has balls; the published code has ellipsoids for convex models, and for networks a mask.
SPACES: Mapping[str, Mapping[str, Any]] = {
    "balls": AUTHORS,
    "masked": {**AUTHORS, "masked_distance": True},
    "ellipsoids": {**AUTHORS, "shape": "ellipsoid"},
}
# From the authors' settings for networks, one at a time.
CHANGES: Mapping[str, Mapping[str, Any]] = {
    "masked": {**AUTHORS, "masked_distance": True},
    "no cluster lost": {**AUTHORS, "skip_first_cluster": False},
    "lower bound": {**AUTHORS, "radius": "lower_bound"},
    "from zeros": {**AUTHORS, "retraining": "zeros"},
}


def plans() -> Sequence[CellPlan]:
    """Return all cells, trial by trial."""
    cells = [_majority_plan()]
    for trial in range(TRIALS):
        for model, hidden in (("convex", ()), ("network", (50,))):
            cells.append(_plan("mnist", model, hidden, (), trial, ("global", "public")))
            cells += [_plan("mnist", model, hidden, (k,), trial, ()) for k in NODES]
        if trial < FEATURE_TRIALS:
            for dataset, width in (("ham10000", 50), ("cifar10", 100)):
                parts = ("global", "public")
                cells.append(_plan(dataset, "network", (width,), NODES, trial, parts))
    for trial in range(TRIALS):
        cells.append(_comparison("convex", "spaces", (), NODES, trial, SPACES))
        cells.append(_comparison("network", "changes", (50,), (5,), trial, CHANGES))
    return cells


def _plan(
    dataset: str,
    model: str,
    hidden: Sequence[int],
    nodes: Sequence[int],
    trial: int,
    parts: Sequence[str],
) -> CellPlan:
    which = f"-k{nodes[0]}" if len(nodes) == 1 else "" if nodes else "-global"
    config = {
        "dataset": dataset,
        "hidden": list(hidden),
        "nodes": list(nodes),
        "trial": trial,
        "parts": list(parts),
        "variants": {str(k): _variants(dataset, model, k) for k in nodes},
        "version": 1,  # of what a cell does with its configuration
    }
    return CellPlan(f"{dataset}-{model}{which}-trial{trial}", config, len(parts) + len(nodes))


def _majority_plan() -> CellPlan:
    """Return what naming the commonest digit is worth: the same in every trial, as the split is."""
    config = {
        "dataset": "mnist",
        "hidden": [],
        "nodes": [],
        "trial": 0,
        "parts": ["majority"],
        "version": 1,
    }
    return CellPlan(MAJORITY, config, 1)


def _comparison(
    model: str,
    what: str,
    hidden: Sequence[int],
    nodes: Sequence[int],
    trial: int,
    variants: Mapping[str, Mapping[str, Any]],
) -> CellPlan:
    config = {
        "dataset": "mnist",
        "compares": what,
        "hidden": list(hidden),
        "nodes": list(nodes),
        "trial": trial,
        "variants": {name: _variant(THEIR_TUNING, **given) for name, given in variants.items()},
        "version": 1,
    }
    return CellPlan(f"mnist-{model}-{what}-trial{trial}", config, len(nodes))


def _variants(dataset: str, model: str, nodes: int) -> Mapping[str, Any]:
    """GEMS by name: its options, and the epochs of the fine-tuning after it."""
    epsilon = EPSILON[dataset, nodes] if dataset != "mnist" else 0.7
    ours = _variant(OUR_TUNING, epsilon=epsilon)
    authors = _variant(THEIR_TUNING, **AUTHORS, epsilon=epsilon)
    if model == "convex":
        stricter = {f"epsilon {e}": _variant(OUR_TUNING, epsilon=e) for e in (0.8, 0.9, 0.95)}
        return {"ours": ours, "authors": authors, **stricter}
    if dataset != "mnist":
        return {"ours": ours, "authors": authors}
    if nodes == 2:
        nothing_merges = _variant(THEIR_TUNING, **AUTHORS, clusters=1, neuron_epsilon=0.01)
        return {"ours": ours, "authors": authors, "authors, m 1, eps_j .01": nothing_merges}
    if nodes == 3:
        return {"ours": ours, "authors": authors}
    stricter_ours = {**ours, "epsilons": [0.8, 0.9, 0.95, 0.98]}
    stricter_authors = {**authors, "epsilons": [0.8, 0.9, 0.95, 0.98]}
    sizes = {f"ours, m {m}": _variant(OUR_TUNING, clusters=m) for m in (25, 50, 75, 150)}
    return {
        "ours": stricter_ours,
        "authors": stricter_authors,
        "authors, m 75": _variant(THEIR_TUNING, **AUTHORS, clusters=75),
        "authors, m 75, eps_j .5": _variant(
            THEIR_TUNING, **AUTHORS, clusters=75, neuron_epsilon=0.5
        ),
        "authors, m 50": _variant(THEIR_TUNING, **AUTHORS, clusters=50),
        **sizes,
    }


def _variant(tuning_epochs: int, **options: Any) -> dict[str, Any]:
    return {"options": options, "tuning_epochs": tuning_epochs}


# The paper's: .2 on CIFAR-10, .25 to .40 on HAM10000 (by node number is our reading).
EPSILON = {
    ("cifar10", 2): 0.2,
    ("cifar10", 3): 0.2,
    ("cifar10", 5): 0.2,
    ("ham10000", 2): 0.4,
    ("ham10000", 3): 0.3,
    ("ham10000", 5): 0.25,
}


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
        model = fit(widths, pool.train, _draws(trial, 0))
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
    """Return all that is measured with one number of nodes."""
    nodes = pool.nodes(count)
    models = [
        fit(widths, train, _draws(trial, 10 * count + number))
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
            convex = AuthorsConvex.model_validate(raw["options"])
            found = intersected([], [m[0] for m in models], nodes, convex, seed)
            figures["gems"][name] = _of_aggregate(found.model, found.figures, pool, trial, tuning)
            continue
        options = AuthorsNetwork.model_validate(raw["options"])
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


def options_of(config: Values) -> list[AuthorsConvex | AuthorsNetwork]:
    """Return every variant's options."""
    kind = AuthorsConvex if not config["hidden"] else AuthorsNetwork
    variants = config.get("variants", {})
    groups = [variants] if "compares" in config else [variants[k] for k in sorted(variants)]
    return [
        kind.model_validate(group[name]["options"]) for group in groups for name in sorted(group)
    ]


def _compared(
    config: Values, pool: Pool, widths: list[int], count: int, trial: int
) -> dict[str, Any]:
    """Return some settings, compared on the same local models as `_nodes` has."""
    nodes = pool.nodes(count)
    models = [
        fit(widths, train, _draws(trial, 10 * count + number))
        for number, (train, _) in enumerate(nodes)
    ]
    seed = 10 * trial + count
    figures: dict[str, Any] = {
        "averaged": accuracy(averaged(models), pool.test),
        "tuned_local": _tuned_locals(models, pool, widths, trial, PUBLIC, DRAWS),
    }
    for name, raw in config["variants"].items():
        if len(widths) == 2:
            convex = AuthorsConvex.model_validate(raw["options"])
            found = intersected([], [m[0] for m in models], nodes, convex, seed)
        else:
            options = AuthorsNetwork.model_validate(raw["options"])
            found, _, _ = network_gems(models, nodes, pool.classes, options, seed)
        figures[name] = _of_aggregate(found.model, found.figures, pool, trial, raw["tuning_epochs"])
    return figures


def _of_aggregate(
    model: Model, figures: dict[str, Any], pool: Pool, trial: int, epochs: int
) -> dict[str, Any]:
    tuned = _tuned(model, pool, trial, epochs)
    return {"accuracy": accuracy(model, pool.test), "tuned": tuned, **figures}


def _tuned(model: Model, pool: Pool, trial: int, epochs: int) -> dict[str, float]:
    """Return test accuracy after training the last layer on that many public samples."""
    *hidden, output = model
    features = hidden_features(hidden, pool.validation.inputs)
    tested = hidden_features(hidden, pool.test.inputs)

    def once(count: int, draw: int) -> float:
        generator = _draws(trial, 1000 + draw)
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
        generator = _draws(trial, 2000 + draw)
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
        generator = _draws(trial, 1000 + draw)
        public = pool.validation.drawn(count, generator)
        model = fit_for(None, widths, public, generator, learning_rate=0.01, epochs=20)
        return accuracy(model, pool.test)

    return {str(count): fmean(once(count, draw) for draw in range(DRAWS)) for count in PUBLIC}


def _draws(trial: int, purpose: int) -> torch.Generator:
    return torch.Generator().manual_seed(100_000 * (trial + 1) + purpose)
