"""Measures predictions for the user's test patients, with 95 % intervals."""

from collections.abc import Iterator, Mapping
from math import isfinite

import numpy as np

from erosion.common.protocol.figures import LARGEST_FIGURE
from erosion.common.protocol.messages import FinalMetrics, Interval, Metrics
from erosion.common.tasks.task import Bounds, Floats, Targets, Task

CHUNK = 2_000_000  # numbers of the bootstrap in memory at a time


def measure(task: Task, predictions: Floats, targets: Targets, training: Targets) -> Metrics:
    """The task's metrics of predictions (n, k) for targets (n, ...), one for each patient.

    `training` are the targets of the user's training part: the base rate comes from them. With
    several predictions of each patient, (m, n, k), a metric is its mean over them.
    """
    weights = np.ones((1, len(targets)))
    figures = _figures(task, predictions, targets, weights, training)
    values = {metric.name: float(figures[metric.name][0]) for metric in task.metrics}
    defined = {name: told(value) if isfinite(value) else None for name, value in values.items()}
    return Metrics.model_validate({"num_patients": len(targets), **defined})


def measure_with_intervals(
    task: Task,
    predictions: Floats,
    targets: Targets,
    training: Targets,
    *,
    resamples: int,
    seed: int,
) -> FinalMetrics:
    """Metrics with 95 % percentile intervals over `resamples` draws of the patients.

    Where the task has a score interval of a metric, too, the ends are the outer ones of both: draws
    of patients on whom a model makes few errors, or none, hardly differ.

    The same seed draws the same patients for every arm. Draws in which a metric is undefined, such
    as AUROC where one class is drawn, are left out of its interval; where all are, it has none.
    """
    gathered: dict[str, list[Floats]] = {}
    for weights in _draws(len(targets), resamples, seed):
        for name, values in _figures(task, predictions, targets, weights, training).items():
            gathered.setdefault(name, []).append(values)
    point = measure(task, predictions, targets, training)
    scores = _score_intervals(task, predictions, targets, training)
    intervals = {}
    for name, parts in gathered.items():
        values = np.concatenate(parts)
        values = values[np.isfinite(values)]
        if len(values) and point.get(name) is not None:
            ends = [*np.quantile(values, [0.025, 0.975]), *scores.get(name, ())]
            intervals[name] = Interval(low=told(min(ends)), high=told(max(ends)))
    return FinalMetrics.model_validate({**point.model_dump(), "intervals": intervals})


def told(figure: float) -> float:
    """A figure no larger than others read one; that of a model that has diverged may be."""
    return min(max(float(figure), -LARGEST_FIGURE), LARGEST_FIGURE)


def _figures(
    task: Task, predictions: Floats, targets: Targets, weights: Floats, training: Targets
) -> Mapping[str, Floats]:
    """`task.figures`, or their means over several predictions of each patient."""
    if predictions.ndim == 2:
        return task.figures(predictions, targets, weights, training)
    each = [task.figures(one, targets, weights, training) for one in predictions]
    return {name: np.mean([figures[name] for figures in each], axis=0) for name in each[0]}


def _score_intervals(
    task: Task, predictions: Floats, targets: Targets, training: Targets
) -> Mapping[str, Bounds]:
    """`task.score_intervals`, or their mean ends over several predictions of each patient."""
    if predictions.ndim == 2:
        return task.score_intervals(predictions, targets, training)
    each = [task.score_intervals(one, targets, training) for one in predictions]
    names = set.intersection(*(set(found) for found in each))
    return {name: tuple(np.mean([found[name] for found in each], axis=0)) for name in names}


def _draws(num_patients: int, resamples: int, seed: int) -> Iterator[Floats]:
    """How often each patient is drawn in each resample: (some resamples, n) at a time."""
    generator = np.random.default_rng(seed)
    at_a_time = max(1, CHUNK // num_patients)
    for start in range(0, resamples, at_a_time):
        count = min(at_a_time, resamples - start)
        drawn = generator.integers(num_patients, size=(count, num_patients))
        drawn += np.arange(count)[:, None] * num_patients
        counts = np.bincount(drawn.ravel(), minlength=count * num_patients)
        yield counts.reshape(count, num_patients).astype(np.float64)
