"""Reads figures out of the cells that there are: means and deviations over the trials."""

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from erosion.experiments.cells import Cell

Figure = Mapping[str, Any]  # of one trial
TITLES = {
    ("mnist", "convex"): "MNIST, logistic regression",
    ("mnist", "network"): "MNIST, one hidden layer of 50",
    ("ham10000", "network"): "HAM10000, one hidden layer of 50 on convolutional features",
    ("cifar10", "network"): "CIFAR-10, one hidden layer of 100 on convolutional features",
}
EPSILONS = (0.7, 0.8, 0.9, 0.95, 0.98)


def trials(cells: Mapping[str, Cell], dataset: str, model: str, part: str) -> list[Figure]:
    """One part of every trial's figures: "global", "public", or a number of nodes."""
    found: list[Figure] = []
    for name in sorted(cells):
        cell = cells[name]
        if name.startswith(f"{dataset}-{model}-") and part in cell.figures:
            figures = cell.figures[part]
            found.append(figures if isinstance(figures, dict) else {"accuracy": figures})
    return found


def trials_of_both(
    cells: Mapping[str, Cell], dataset: str, model: str, part: str, other: str
) -> tuple[list[Figure], list[Figure]]:
    """Two parts' figures of the trials that have both, so that their means can be compared."""
    numbers = [
        {
            cell.plan.config["trial"]
            for name, cell in cells.items()
            if name.startswith(f"{dataset}-{model}-") and each in cell.figures
        }
        for each in (part, other)
    ]
    both = numbers[0] & numbers[1]
    kept = {name: cell for name, cell in cells.items() if cell.plan.config["trial"] in both}
    return trials(kept, dataset, model, part), trials(kept, dataset, model, other)


def values_of(figures: Sequence[Figure], *path: str) -> list[float]:
    """One figure of every trial."""
    return [_at(trial, path) for trial in figures]


def mean_of(figures: Sequence[Figure], *path: str) -> float:
    """The mean of one figure over the trials."""
    return fmean(values_of(figures, *path))


def spread(figures: Sequence[Figure], *path: str) -> str:
    """Mean and (deviation) of one figure over the trials."""
    values = values_of(figures, *path)
    mean = short(fmean(values))
    return f"{mean} ({short(stdev(values))})" if len(values) > 1 else mean


def short(value: float) -> str:
    """.123"""
    return f"{value:.3f}".replace("0.", ".", 1) if value < 1 else f"{value:.3f}"


def at_epsilon(name: str, epsilon: float) -> str:
    """The name of a variant that asks for an accuracy of `epsilon`."""
    return name if epsilon == EPSILONS[0] else f"{name}, epsilon {epsilon}"


def _at(figure: Figure, path: Sequence[str]) -> float:
    value: Any = figure
    for key in path:
        value = value[key]
    return float(value)
