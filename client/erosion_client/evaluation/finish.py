"""The finish: a regression of the user's training patients around what the others have learned.

    output = a offset + b + z d          z: standardised; of a network what its last layer takes
    a ~ N(1, 1 / (2 slope))   b ~ N(0, 1 / (2 intercept))   each d ~ N(0, 1 / (2 strength))

The offset is the model of a run that never added the user's update, so that each outcome is used
once: with one that was trained on them, the evidence would believe the offset too readily. Every
triple of a grid is fitted; its weight is its marginal likelihood, by Laplace's approximation, and
for a number exactly (its variance is integrated out, and scales the priors). "Offset" and "no
offset" have half of the weight each before the data. Nothing is drawn at random. A patient counts
once, however many rows it has. Of several classes each has its own b and d; of survival the
intervals of a patient are rows, with b of their own and common d.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits
from torch import Tensor, nn

from erosion_common.learning.finished import Finished, features_of
from erosion_common.protocol.messages import FinishFigures
from erosion_common.protocol.performance import Estimate
from erosion_common.settings.names import LARGEST_FIGURE
from erosion_common.tasks.regression import Regression
from erosion_common.tasks.survival import Survival
from erosion_common.tasks.task import Floats, Targets, Task

STRENGTHS = 10.0 ** np.arange(-2, 4.1, 0.5)
SLOPES = (0.3, 3.0, 30.0)  # a = 1 +- 1.3, 0.4, 0.13: the first lets an inverted offset turn round
INTERCEPT = 0.3  # b = 0 +- 1.3
ALONE = 0.1  # of the intercept where there is no offset
MOST_EFFECTS = 300  # d of all outputs together; of more columns their largest components
MOST_PRODUCTS = 2e9  # rows times d squared: fewer components where there are many patients
LARGEST = 1e6  # outputs of a model that diverged
NEGLIGIBLE = 1e-6  # weight of a model that is left out
STEPS, CONVERGED = 50, 1e-8  # of Newton's method


class Fit(NamedTuple):
    """One model of the grid."""

    values: Floats  # (q,) a, then b and d of the first output, of the second, ...
    evidence: float  # log of its marginal likelihood, up to a constant of the data
    variance: float  # of a


@dataclass(frozen=True)
class Regressed:
    """What is fitted: n rows, F outputs, p columns."""

    columns: Floats  # (n, p) ones or intervals, then z
    num_intercepts: int  # of the columns
    offset: Floats  # (n, F)
    outcome: Floats  # (n, F) 1 where it is this class, 1 for an event; or the number, (n, 1)
    weight: Floats  # (n,) one for each patient, or less of each of its rows

    def curvatures(self, slope: float, intercept: float, strength: float) -> Floats:
        """Return those of the priors: (q,)."""
        effects = self.columns.shape[1] - self.num_intercepts
        of_output = [*[2 * intercept] * self.num_intercepts, *[2 * strength] * effects]
        return np.array([2 * slope, *of_output * self.offset.shape[1]])


Fitter = Callable[[Regressed, Floats], Fit]


def fit_classes(seen: Regressed, curvatures: Floats) -> Fit:
    """Fit logits by Newton's steps, halved where they are too long; one output is of two classes.

    Evidence: -objective + (log det of the priors' curvature - log det of all curvature) / 2.
    """
    x, outputs = seen.columns, seen.offset.shape[1]
    centre = np.eye(len(curvatures))[0]
    pinned = np.zeros((len(x), int(outputs == 1)))  # the logit of the other one of two classes

    def logits(values: Floats) -> Floats:
        found: Floats = values[0] * seen.offset + x @ values[1:].reshape(outputs, -1).T
        return found

    def objective(values: Floats) -> float:
        odds = logits(values)
        losses = np.logaddexp.reduce(np.hstack([pinned, odds]), axis=1) - (seen.outcome * odds).sum(
            axis=1
        )
        return float(seen.weight @ losses + curvatures @ np.square(values - centre) / 2)

    def derivatives(values: Floats) -> tuple[Floats, Floats]:
        odds = np.hstack([pinned, logits(values)])
        chances = np.exp(odds - np.logaddexp.reduce(odds, axis=1)[:, None])[:, pinned.shape[1] :]
        errors = seen.weight[:, None] * (chances - seen.outcome)
        gradient = np.append((errors * seen.offset).sum(), (errors.T @ x).ravel())
        hessian, width = np.zeros((len(values), len(values))), x.shape[1]
        for one, other in product(range(outputs), repeat=2):
            joint = seen.weight * chances[:, one] * ((one == other) - chances[:, other])
            rows, columns = (slice(1 + n * width, 1 + (n + 1) * width) for n in (one, other))
            hessian[rows, columns] = (x.T * joint) @ x
            hessian[0, rows] += x.T @ (joint * seen.offset[:, other])
            hessian[0, 0] += joint @ (seen.offset[:, one] * seen.offset[:, other])
        hessian[1:, 0] = hessian[0, 1:]
        return gradient + curvatures * (values - centre), hessian + np.diag(curvatures)

    values = centre
    for _ in range(STEPS):
        gradient, hessian = derivatives(values)
        step = np.linalg.solve(hessian, gradient)
        gain, length, before = float(gradient @ step), 1.0, objective(values)
        while objective(values - length * step) > before - 1e-4 * length * gain + 1e-9:
            length /= 2
            if length < 1e-6:
                break
        values = values - length * step
        if gain < CONVERGED:
            break
    _, hessian = derivatives(values)
    evidence = -objective(values) + _log_volume(curvatures, hessian)
    return Fit(values, evidence, _first_variance(hessian))


def fit_number(seen: Regressed, curvatures: Floats) -> Fit:
    """Fit a number in closed form; its variance, of prior 1 / variance, is integrated out."""
    x = np.column_stack([seen.offset, seen.columns])
    centre = np.eye(len(curvatures))[0]
    hessian = (x.T * seen.weight) @ x + np.diag(curvatures)
    weighted = x.T @ (seen.weight * seen.outcome[:, 0])
    values = np.linalg.solve(hessian, weighted + curvatures * centre)
    errors, patients = seen.outcome[:, 0] - x @ values, float(seen.weight.sum())
    squares = float(seen.weight @ np.square(errors) + curvatures @ np.square(values - centre))
    squares = max(squares, 1e-12 * patients)
    evidence = _log_volume(curvatures, hessian) - patients / 2 * np.log(squares)
    return Fit(values, float(evidence), _first_variance(hessian) * squares / patients)


def _log_volume(curvatures: Floats, hessian: Floats) -> float:
    return float(np.log(curvatures).sum() - np.linalg.slogdet(hessian)[1]) / 2


def _first_variance(hessian: Floats) -> float:
    return float(np.linalg.solve(hessian, np.eye(len(hessian))[0])[0])


def average(seen: Regressed, fit: Fitter, *, alone: bool) -> tuple[list[Fit], Floats, float]:
    """Return all models of the grid, their weights, and the log of their mean evidence.

    `alone`: without the offset, and with slopes of 0.
    """
    if alone:
        seen = replace(seen, offset=0 * seen.offset)
    tried = product(SLOPES[:1] if alone else SLOPES, STRENGTHS)
    intercept = ALONE if alone else INTERCEPT
    found = [fit(seen, seen.curvatures(slope, intercept, strength)) for slope, strength in tried]
    if alone:
        found = [Fit(np.append(0.0, one.values[1:]), one.evidence, 0.0) for one in found]
    evidence = np.array([one.evidence for one in found])
    weights = np.exp(evidence - evidence.max())
    total = float(evidence.max() + np.log(weights.mean()))
    return found, weights / weights.sum(), total


@threadpool_limits.wrap(limits=1)  # type: ignore[untyped-decorator]  # the same sums everywhere
def finished(
    task: Task,
    model: nn.Module,
    parameters: Tensor,
    inputs: Tensor,
    targets: Targets,
    patients: NDArray[np.int64],
) -> tuple[Finished, FinishFigures]:
    """Fit the last layer to training patients' inputs (n, *shape), targets, and numbers (n,).

    `parameters` (dim,): of the offset. Returns the model and what the report says of it.
    """
    features, outputs = (each.cpu().numpy() for each in features_of(model, parameters, inputs))
    outputs = np.clip(np.nan_to_num(outputs), -LARGEST, LARGEST)
    features = np.clip(np.nan_to_num(features), -LARGEST, LARGEST)
    mean, deviation = features.mean(axis=0), features.std(axis=0)
    deviation = np.where(deviation > 1e-9, deviation, 1.0)
    scaled = (features - mean) / deviation
    contrast, lift = _contrast(task)
    most = min(MOST_EFFECTS, int((MOST_PRODUCTS / len(scaled)) ** 0.5))
    turn = _components(scaled, most // (1 if isinstance(task, Survival) else len(contrast)))
    _, numbers, counts = np.unique(patients, return_inverse=True, return_counts=True)
    seen, fit = _seen(task, scaled @ turn, outputs @ contrast.T, targets, 1 / counts[numbers])
    together, alone = (average(seen, fit, alone=alone) for alone in (False, True))
    share = float(1 / (1 + np.exp(np.clip(together[2] - alone[2], -700, 700))))
    width = features.shape[1]
    last = parameters[-outputs.shape[1] * (width + 1) :].cpu().double().numpy()
    weight, bias = last[: -outputs.shape[1]].reshape(-1, width), last[-outputs.shape[1] :]
    start = task.start if isinstance(task, Survival) else 0.0  # added to the outputs later

    def layer(values: Floats) -> Floats:
        """Return the last layer, weight and bias, that gives the same outputs."""
        of_output = values[1:].reshape(-1, seen.columns.shape[1])
        base = of_output[:, : seen.num_intercepts].reshape(-1)
        effects = (of_output[:, seen.num_intercepts :] @ turn.T) / deviation
        weights = values[0] * (contrast @ weight) + effects
        biases = values[0] * (contrast @ (bias + start)) + base - effects @ mean - start
        return np.append((lift @ weights).ravel(), lift @ biases)

    rows = [
        np.append(weight_of_all, layer(one.values))
        for part, (found, weights, _) in ((1 - share, together), (share, alone))
        for one, weight_of_all in zip(found, part * weights, strict=True)
        if weight_of_all >= NEGLIGIBLE
    ]
    layers = torch.from_numpy(np.array(rows)).float().to(parameters.device)
    return Finished(parameters, layers), FinishFigures(
        slope=_slope(together[0], together[1]), share_alone=share
    )


def _contrast(task: Task) -> tuple[Floats, Floats]:
    """Return what makes the fitted outputs (F, k) of a model's, and the other way round (k, F)."""
    if task.predicts == "classes" and task.num_outputs == 2:
        return np.array([[-1.0, 1.0]]), np.array([[0.0], [1.0]])  # log odds of the second
    return np.eye(task.num_outputs), np.eye(task.num_outputs)


def _components(scaled: Floats, most: int) -> Floats:
    """Return the directions (width, r) in which columns (n, width) are fitted.

    A direction in which no patients differ says nothing, and leaves the evidence as it is.
    """
    if scaled.shape[1] <= min(most, len(scaled)):
        return np.eye(scaled.shape[1])
    _, lengths, directions = np.linalg.svd(scaled, full_matrices=False)
    kept = min(max(1, most), int((lengths > 1e-9 * max(lengths[0], 1e-9)).sum()))
    return directions[:kept].T


def _seen(
    task: Task, scaled: Floats, offset: Floats, targets: Targets, weight: Floats
) -> tuple[Regressed, Fitter]:
    """Return the rows as the task has them, and how they are fitted."""
    ones = np.ones((len(scaled), 1))
    if isinstance(task, Survival):
        died, survived = task.seen_intervals(targets)
        row, interval = np.nonzero((died + survived) > 0)
        periods = np.eye(died.shape[1])[interval]
        hazard = offset[row, interval][:, None] + task.start
        columns = np.hstack([periods, scaled[row]])
        events = died[row, interval][:, None]
        return Regressed(columns, periods.shape[1], hazard, events, weight[row]), fit_classes
    columns = np.hstack([ones, scaled])
    if isinstance(task, Regression):
        number = (targets[:, None] - task.centre) / task.spread
        return Regressed(columns, 1, offset, number, weight), fit_number
    classes = np.eye(task.num_outputs)[targets.astype(np.int64)][:, -offset.shape[1] :]
    return Regressed(columns, 1, offset, classes, weight), fit_classes


def _slope(found: list[Fit], weights: Floats) -> Estimate:
    """Return the mean of a over the models with an offset, and 1.96 deviations to either side."""
    slopes = np.array([one.values[0] for one in found])
    variances = np.array([one.variance for one in found])
    mean = float(weights @ slopes)
    half = 1.96 * float(weights @ (variances + np.square(slopes - mean))) ** 0.5
    ends = np.clip([mean, mean - half, mean + half], -LARGEST_FIGURE, LARGEST_FIGURE)
    value, low, high = ends.tolist()
    return Estimate(value=value, low=low, high=high)
