"""Metrics of a model on the user's test patients, with bootstrap intervals."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from erosion.common.protocol.messages import FinalMetrics, Interval, Metrics

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

PROBABILITY_FLOOR = 0.01  # one certain mistake must not outweigh all other patients
CHUNK = 2_000_000  # numbers of the bootstrap in memory at a time


def patient_log_losses(probabilities: Floats, labels: Labels) -> Floats:
    """-log of the probability of each patient's class, clipped to [0.01, 0.99]: (n,)."""
    of_truth = probabilities[np.arange(len(labels)), labels]
    return -np.log(np.clip(of_truth, PROBABILITY_FLOOR, 1 - PROBABILITY_FLOOR))


def measure(probabilities: Floats, labels: Labels, majority: int) -> Metrics:
    """Metrics of probabilities (n, classes) for labels (n,), at least one patient.

    `majority` is the commonest class of the user's training part.
    """
    weights = np.ones((1, len(labels)))
    values = _per_resample(probabilities, labels, majority, weights)
    auroc = float(values["auroc"][0])
    return Metrics(
        num_samples=len(labels),
        accuracy=float(values["accuracy"][0]),
        majority_accuracy=float(values["majority_accuracy"][0]),
        auroc=None if np.isnan(auroc) else auroc,
        brier=float(values["brier"][0]),
        log_loss=float(values["log_loss"][0]),
    )


def measure_with_intervals(
    probabilities: Floats, labels: Labels, majority: int, *, resamples: int, seed: int
) -> FinalMetrics:
    """Metrics with 95 % percentile intervals over `resamples` draws of the patients.

    The same seed draws the same patients for every arm. Draws in which AUROC is undefined, because
    a class is absent, are left out of its interval; where all are, it has none.
    """
    gathered: dict[str, list[Floats]] = {}
    for weights in _draws(len(labels), resamples, seed):
        for name, values in _per_resample(probabilities, labels, majority, weights).items():
            gathered.setdefault(name, []).append(values)
    point = measure(probabilities, labels, majority)
    intervals = {}
    for name, parts in gathered.items():
        values = np.concatenate(parts)
        values = values[~np.isnan(values)]
        if len(values) and getattr(point, name) is not None:
            low, high = np.quantile(values, [0.025, 0.975])
            intervals[name] = Interval(low=float(low), high=float(high))
    return FinalMetrics(**point.model_dump(), intervals=intervals)


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


def _per_resample(
    probabilities: Floats, labels: Labels, majority: int, weights: Floats
) -> dict[str, Floats]:
    """Every metric for every row of weights (resamples, n): (resamples,), NaN if undefined."""
    truth = np.eye(probabilities.shape[1])[labels]
    per_patient = {
        "accuracy": (probabilities.argmax(axis=1) == labels).astype(np.float64),
        "majority_accuracy": (labels == majority).astype(np.float64),
        "brier": np.square(probabilities - truth).sum(axis=1),
        "log_loss": patient_log_losses(probabilities, labels),
    }
    total = weights.sum(axis=1)
    means = {name: weights @ values / total for name, values in per_patient.items()}
    return {**means, "auroc": _auroc(probabilities, labels, weights)}


def _auroc(probabilities: Floats, labels: Labels, weights: Floats) -> Floats:
    """Area under the ROC curve; of the last class if there are two, else the one-vs-rest mean."""
    num_classes = probabilities.shape[1]
    classes = [1] if num_classes == 2 else range(num_classes)
    areas = [_binary_auroc(probabilities[:, c], labels == c, weights) for c in classes]
    mean: Floats = np.mean(areas, axis=0)
    return mean


def _binary_auroc(scores: Floats, positive: NDArray[np.bool_], weights: Floats) -> Floats:
    """The chance that a positive patient scores above a negative one, ties counting half.

    weights (resamples, n) -> (resamples,), NaN where one side has no weight.
    """
    order = np.argsort(scores, kind="stable")
    ranked, is_positive = scores[order], positive[order]
    starts = np.flatnonzero(np.concatenate(([True], ranked[1:] != ranked[:-1])))
    sorted_weights = weights[:, order]
    positives = np.add.reduceat(sorted_weights * is_positive, starts, axis=1)  # per distinct score
    negatives = np.add.reduceat(sorted_weights * ~is_positive, starts, axis=1)
    below = np.cumsum(negatives, axis=1) - negatives
    wins = (positives * (below + 0.5 * negatives)).sum(axis=1)
    pairs = positives.sum(axis=1) * negatives.sum(axis=1)
    areas: Floats = np.divide(wins, pairs, out=np.full(len(pairs), np.nan), where=pairs > 0)
    return areas
