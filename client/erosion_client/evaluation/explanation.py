"""What a model uses: permutation importance, partial dependence, and a linear model's coefficients.

Importance is measured on patients that the model never saw. Dependence and coefficients describe
the final model. A coefficient's interval comes from refits: over the folds' models where the
evaluation is cross-fitted (a grouped jackknife over the user's patients, the other hospitals'
being the same), and, for the user's patients alone, from fits to draws of them.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from math import log
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from erosion_client.dataset.local_dataset import LocalDataset
from erosion_client.dataset.preprocessing import placed
from erosion_client.evaluation.performance import drawn_patients, estimate, fitted
from erosion_common.errors import Refusal
from erosion_common.formats.model_card import ModelCard
from erosion_common.learning.finished import Finished, Predictor, predicted_by
from erosion_common.protocol.messages import Scaling
from erosion_common.protocol.performance import (
    MOST_COLUMNS,
    MOST_DEPENDENCES,
    Coefficient,
    Dependence,
    Estimate,
    Importance,
)
from erosion_common.protocol.scaling import CUT
from erosion_common.study.study import Study
from erosion_common.tasks.classification import Classification
from erosion_common.tasks.count import Count
from erosion_common.tasks.features import CategoryFeature, Feature
from erosion_common.tasks.inputs import TabularTask, multiply
from erosion_common.tasks.metric import Z
from erosion_common.tasks.preparations import LOGARITHM, prepared, term_values
from erosion_common.tasks.regression import Regression
from erosion_common.tasks.survival import Survival
from erosion_common.tasks.task import Floats, Targets, means_of_patients

PERMUTATIONS = 5
MOST_TRIED = 2000  # rows that are permuted, or that dependence is a mean over
STEPS = np.arange(-2.0, 2.1, 0.5)  # of dependence on a number, in deviations from its mean
REFIT_NUMBERS = 2e8  # of the products that fits to the user's patients need, all draws together
MOST_REFITTED = 60  # columns
RIDGE = 1.0  # of those fits: times half of a squared coefficient, so that they always exist


class Column(NamedTuple):
    """An encoded column."""

    feature: str
    category: str | None  # that it indicates, or which of a number's; None: the number itself


def shown_arm(study: Study) -> str:
    """Return the arm that is explained: the compared one, or the first."""
    return study.comparison[0] if study.comparison is not None else next(iter(study.arms))


def encoded_columns(task: TabularTask) -> list[Column]:
    """Return what each input column is."""
    return [Column(name, label or None) for name, label in task.columns()]


def _places(task: TabularTask) -> Iterator[tuple[str, slice]]:
    for feature, start in placed(task):
        yield feature.name, slice(start, start + task.width(feature))


def permuted_losses(
    dataset: LocalDataset, predictor: Predictor, scaling: Scaling | None, arm: str
) -> Floats | None:
    """Return by how much each test patient's loss grows without a column: (n, features).

    Its values are exchanged between the test rows. None for images, or where too few are tested.
    """
    task = dataset.study.task
    if not isinstance(task, TabularTask):
        return None
    _, test = dataset.parts(scaling, arm)
    patients, outcomes = dataset.test_patients, dataset.tested_outcomes
    if len(test.inputs) < 2:
        return None
    tried = _tried(dataset, patients)
    of_tried = np.isin(np.unique(patients), patients[tried])  # (patients,)
    rows, patients = test.inputs[torch.from_numpy(tried)], patients[tried]
    generator = np.random.default_rng(dataset.seed("permutations"))
    orders = [torch.from_numpy(generator.permutation(len(rows))) for _ in range(PERMUTATIONS)]

    def losses(inputs: Tensor) -> Floats:
        """Return the mean loss of each patient over as many repetitions of the rows."""
        predicted = predicted_by(task, dataset.model, predictor, inputs).cpu().numpy()
        each = task.usable(predicted).reshape(-1, len(rows), predicted.shape[-1])
        found = [
            task.patient_losses(task.predictions_of_patients(one, patients), outcomes[of_tried])
            for one in each
        ]
        mean: Floats = np.mean(found, axis=0)
        return mean

    whole, farthest = losses(rows), _farthest(dataset.scaling(scaling, arm))
    grown = np.full((len(outcomes), len(task.features)), np.nan)
    grown[of_tried] = 0.0
    for number, (_, columns) in enumerate(islice(_places(task), MOST_COLUMNS)):
        changed = rows.repeat(PERMUTATIONS, 1)
        changed[:, columns] = torch.cat([rows[order][:, columns] for order in orders])
        grown[of_tried, number] = losses(multiply(task, changed, farthest)) - whole
    return grown


def _farthest(scaling: Scaling | None) -> float:
    return np.inf if scaling is None else CUT.deviations


def _tried(dataset: LocalDataset, patients: NDArray[np.int64]) -> NDArray[np.int64]:
    """Draw patients with at most MOST_TRIED rows together, and return the rows' places (n,).

    The table's first ones would not do: it may be sorted. The order is the same in every fold.
    """
    numbers, rows = np.unique(patients, return_counts=True)
    generator = np.random.default_rng(dataset.seed("tried"))
    order = np.argsort(generator.random(dataset.patients.num_patients)[numbers])
    most = max(2, int((np.cumsum(rows[order]) <= MOST_TRIED).sum()))
    return np.flatnonzero(np.isin(patients, numbers[order[:most]]))


def importance(dataset: LocalDataset, grown: Floats) -> list[Importance]:
    """Return the columns, the most important first. `grown`: (cuts, n, features).

    Without those in which fewer than a cell of patients differ: their figure would be of these.
    """
    task = dataset.study.task
    assert isinstance(task, TabularTask)
    known = grown[:, np.isfinite(grown).all(axis=(0, 2))].mean(axis=0)
    if len(known) < dataset.cells.cell:
        return []
    draws = drawn_patients(len(known), dataset.seed("bootstrap"))
    means = draws @ known / draws.sum(axis=1, keepdims=True)
    measured = np.arange(grown.shape[1])
    of_few = {
        feature.name
        for feature, values in dataset.columns(every=dataset.study.evaluation.folds is not None)
        if _is_of_few(dataset, values[-len(measured) :], measured)
    }
    found = [
        Importance(column=feature.name, loss=each)
        for number, feature in enumerate(task.features[:MOST_COLUMNS])
        if feature.name not in of_few and (each := estimate(means[:, number])) is not None
    ]
    return sorted(found, key=lambda each: -each.loss.value)


def dependence(
    dataset: LocalDataset,
    predictor: Predictor,
    scaling: Scaling | None,
    arm: str,
    ranked: Sequence[str],
) -> Iterator[Dependence]:
    """Yield the mean prediction for the training patients by value of the first columns."""
    task = dataset.study.task
    if not isinstance(task, TabularTask):
        return
    if isinstance(task, Classification) and task.num_outputs > 2:
        return
    training, _ = dataset.parts(scaling, arm)
    scaled_by = dataset.scaling(scaling, arm)
    tried = torch.from_numpy(_tried(dataset, dataset.patients.groups[dataset.split.training]))
    inputs, patients = training.inputs[tried], dataset.training_patients[tried].numpy()
    places, features = dict(_places(task)), {each.name: each for each in task.features}
    described = _described(dataset)

    def mean_with(columns: slice, values: Tensor) -> float:
        changed = inputs.clone()
        changed[:, columns] = values.to(inputs)
        changed = multiply(task, changed, _farthest(scaled_by))
        predicted = predicted_by(task, dataset.model, predictor, changed).cpu().numpy()
        of_patients = means_of_patients(task.usable(predicted), patients)[:, -1]
        mean = float(of_patients.mean())
        return float(f"{1 - mean if isinstance(task, Survival) else mean:.6g}")

    for name in ranked[:MOST_DEPENDENCES]:
        feature, columns = features[name], places[name]
        width = columns.stop - columns.start
        if isinstance(feature, CategoryFeature):
            codes = torch.cat([torch.zeros(1, width), torch.eye(width)])[: len(feature.categories)]
            categories = tuple(str(each)[:200] for each in feature.categories[: len(codes)])
            y = tuple(mean_with(columns, code) for code in codes)
            yield Dependence(column=name, categories=categories, y=y)
            continue
        if (found := described.get(name)) is None:
            continue
        mean, deviation = found
        low, high = feature.range or (-np.inf, np.inf)
        x = np.unique(np.clip(mean + STEPS * deviation, low, high))
        inside = torch.from_numpy(
            np.stack([*_inside(task, feature, x, scaled_by, columns)], axis=1)
        )
        y = tuple(mean_with(columns, values) for values in inside)
        yield Dependence(column=name, x=tuple(float(f"{value:.6g}") for value in x), y=y)


def _inside(
    task: TabularTask, feature: Feature, x: Floats, scaling: Scaling | None, columns: slice
) -> Iterator[Floats]:
    """Yield each input column (n,) of a number's values (n,)."""
    values = prepared(feature, x)
    for place, term in enumerate(task.terms(feature), columns.start):
        column = term_values(term, values)
        if scaling is not None and term.code is None:
            column = (column - scaling.mean[place]) / scaling.deviation[place]
        yield column


def _described(dataset: LocalDataset) -> dict[str, tuple[float, float]]:
    try:
        columns = dataset.summary.columns
    except Refusal:
        return {}
    return {
        each.name: (each.mean, each.deviation)
        for each in columns
        if each.mean is not None and each.deviation
    }


def linear_effects(of: Study | ModelCard, predictor: Predictor) -> Floats | None:
    """Return a linear model's effect of each encoded column (q,); None where there is none.

    After a finish it is the mean over its last layers.

    The log odds of the second class; in the outcome's unit, or the log rate of a count; the mean
    log odds of the hazards.
    """
    task = of.task
    if of.model.name != "logistic" or not isinstance(task, TabularTask):
        return None
    parameters = predictor.mean() if isinstance(predictor, Finished) else predictor
    width = task.input_shape[0]
    is_ensemble = parameters.numel() > (width + 1) * task.num_outputs
    if is_ensemble or (isinstance(task, Classification) and task.num_outputs > 2):
        return None
    values = parameters.reshape(-1).cpu().double().numpy()
    weights = values[: width * task.num_outputs].reshape(task.num_outputs, width)
    effects: Floats = weights.mean(axis=0)
    if isinstance(task, Regression):
        effects = weights[0] * task.effect_of_one
    elif not isinstance(task, Survival):
        effects = weights[1] - weights[0]
    return effects if np.isfinite(effects).all() else None  # a tuning at the end may diverge


def coefficients(
    dataset: LocalDataset,
    effects: Floats,
    scaling: Scaling | None,
    in_folds: Sequence[Floats],
    errors: Floats | None = None,
) -> list[Coefficient]:
    """Return them for one deviation of a number, or a doubling, with intervals from refits.

    `in_folds`: the same of each cut's folds' models, (folds, q); none for a test part. `errors`:
    standard errors (q,) of an exact regression.
    """
    task = dataset.study.task
    assert isinstance(task, TabularTask)
    columns, described = encoded_columns(task), _described(dataset)
    one = np.ones(len(columns))  # by how much a column is moved
    doubled = {each.name for each in task.features if getattr(each, "log", False)}
    for number, (feature, category) in enumerate(columns):
        by = described[feature][1] if category is None and feature in described else None
        if feature in doubled and category == LOGARITHM:
            by = log(2)
        if by is not None:
            one[number] = by / (scaling.deviation[number] if scaling else 1.0)
    own, in_own = dataset.own_scaling, one
    if scaling is not None and own is not None:  # which may differ: an effect is of equal moves
        in_own = one * np.divide(scaling.deviation, own.deviation)
    one, in_own = (multiply(task, each[None])[0] for each in (one, in_own))
    half = half_width(in_folds) if len(in_folds) else None
    alone = _alone(dataset, columns, in_own) if described else None

    def within(value: float, width: float) -> Estimate:
        return Estimate(value=value, low=value - width, high=value + width)

    found = []
    for number, (feature, category) in enumerate(columns[:MOST_COLUMNS]):
        value = float(f"{effects[number] * one[number]:.6g}")
        moved = float(abs(one[number]))
        found.append(
            Coefficient(
                column=feature,
                category=None if category is None else category[:200],
                value=value,
                refits=None if half is None else within(value, float(half[number]) * moved),
                pooled=None if errors is None else within(value, Z * errors[number] * moved),
                alone=None if alone is None else alone[number],
            )
        )
    return found


def half_width(in_folds: Sequence[Floats]) -> Floats:
    """Return half a 95 % interval: the jackknife's variance, averaged over the cuts.

    Leaving out a fold at a time, each cut gives folds - 1 degrees of freedom; Student's quantile of
    their sum held the truth in 95 % of regressions simulated with 2 to 10 folds and 1 to 10 cuts.
    """
    from scipy.special import stdtrit

    each = [
        (len(of_cut) - 1) / len(of_cut) * np.square(of_cut - of_cut.mean(axis=0)).sum(axis=0)
        for of_cut in in_folds
    ]
    freedom = sum(len(of_cut) - 1 for of_cut in in_folds)
    half: Floats = stdtrit(freedom, 0.975) * np.sqrt(np.mean(each, axis=0))
    return half


def _alone(
    dataset: LocalDataset, columns: Sequence[Column], moved: Floats
) -> list[Estimate | None] | None:
    """Return effects in a regression of the user's training patients alone, bootstrapped.

    `moved`: (q,) by how much each column is, in the units of this hospital's own scaling.
    """
    task = dataset.study.task
    if len(columns) > MOST_REFITTED or not isinstance(task, TabularTask):
        return None
    training, _ = dataset.rows_alone()
    _, patients = np.unique(training.patients, return_inverse=True)
    inputs, scales = training.inputs, np.ones(len(columns))
    for number, (_, category) in enumerate(columns):
        if category is None:
            spread = float(inputs[:, number].std())
            scales[number] = spread if spread > 1e-9 else 1.0
    scales = multiply(task, scales[None])[0]
    rows, truth, part = _as_regression(task, inputs / scales, training.targets)
    if rows is None:
        return None
    width = rows.shape[1]
    count = int(np.clip(REFIT_NUMBERS / (len(rows) * width**2), 0, 200))
    if count < 50 or len(rows) < 3 * width:
        return None
    draws = drawn_patients(patients.max() + 1, dataset.seed("bootstrap"))[: 1 + count]
    of_patients = np.bincount(patients)[patients]  # a patient counts once
    weights = draws[:, patients[part]] / of_patients[part]
    penalty = np.where(np.arange(width) < len(columns), RIDGE, 1e-6)
    is_linear = isinstance(task, Regression)
    found = fitted(rows, truth, weights, penalty=penalty, is_linear=is_linear)
    found[:, : len(columns)] *= moved / scales
    of_few = [_is_of_few(dataset, inputs[:, number], patients) for number in range(len(columns))]
    return [None if few else estimate(found[:, number]) for number, few in enumerate(of_few)]


def _is_of_few(dataset: LocalDataset, values: Floats, patients: NDArray[np.int64]) -> bool:
    """Return whether fewer than a cell of patients have another value (n,) than most."""
    _, kinds, counts = np.unique(values, return_inverse=True, return_counts=True)
    return len(np.unique(patients[kinds != counts.argmax()])) < dataset.cells.cell


def _as_regression(
    task: object, inputs: Floats, targets: Targets
) -> tuple[Floats | None, Floats, NDArray[np.int64]]:
    """Return columns, outcomes, and the row of each; survival has a row for each interval seen."""
    num, everybody = len(inputs), np.arange(len(inputs))
    if isinstance(task, Survival):
        died, survived = task.seen_intervals(targets)
        row, interval = np.nonzero((died + survived) > 0)
        periods = np.eye(died.shape[1])[interval]
        return np.column_stack([inputs[row], periods]), died[row, interval], row
    is_binary = isinstance(task, Classification) and len(task.classes) == 2
    if is_binary or (isinstance(task, Regression) and not isinstance(task, Count)):
        return np.column_stack([inputs, np.ones(num)]), targets.astype(np.float64), everybody
    return None, np.empty(0), everybody
