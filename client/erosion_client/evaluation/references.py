"""Local references: tuned models of the user's own patients, which collaborating has to beat.

Each is fitted at the user's site to its training patients alone. Its regularisation is chosen
among these, by folds of patients that are predicted in turn, so that test patients do not take
part. In a cross-fitted evaluation each fold chooses separately.

ridge: a linear model with the least training loss of the task plus a strength times the squared
    coefficients, fitted until it converges. The coefficients of output k are shared + own[k], both
    shrunk: for survival that is one effect on all hazards, and a smaller deviation of each.
boosted_trees: scikit-learn's gradient boosting (HistGradientBoosting) with the size of its trees
    and their number; of counts with Poisson's loss, for survival of discrete-time hazards, the
    interval being a column.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice, repeat
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits
from torch import Tensor

from erosion_client.dataset.local_dataset import Rows
from erosion_common.algorithms.personal_layers import take_step
from erosion_common.learning.local_sgd import predictions_of
from erosion_common.learning.local_work import LocalOutcome, LocalWork
from erosion_common.study.sections import LocalReference
from erosion_common.study.study import Study
from erosion_common.tasks.classification import Classification
from erosion_common.tasks.count import Count
from erosion_common.tasks.regression import Regression
from erosion_common.tasks.survival import Survival
from erosion_common.tasks.task import Floats, Task, as_tensor

FOLDS = 5  # of the training patients, for choosing strengths and sizes
MOST_CHOOSING = 2000  # patients in these folds; the final fit uses all
STRENGTHS = tuple(10.0 ** np.arange(4.0, -2.1, -0.5))  # times the squared coefficients
INTERCEPT_STRENGTH = 1e-3  # so that a class that is absent has a finite intercept
TREES: Sequence[Mapping[str, Any]] = (
    {"max_leaf_nodes": 3, "min_samples_leaf": 5},
    {"max_leaf_nodes": 12, "min_samples_leaf": 20},
)
MOST_TREES, STEP = 100, 10

Numbers = NDArray[np.int64]
# Training patients, and the inputs of others (m, columns) -> predictions of these (m, k) by each
# candidate in turn, always in the same number.
Fits = Callable[[Task, Rows, Floats], Iterator[Floats]]


class Reference(NamedTuple):
    """A reference, tuned inside the training part."""

    predictions: Floats  # (m, k) of the test patients
    loss: float  # total over the training patients: no fold helped to predict itself


def folds_of_patients(training: Rows, task: Task, seed: int) -> Numbers:
    """Return a fold per row (n,), the same for one patient's; -1 where nothing is chosen.

    Each fold has its share of every stratum (class).
    """
    strata = task.strata(task.targets_of_patients(training.targets, training.patients))
    chosen_by = np.random.default_rng(seed).permutation(len(strata))[:MOST_CHOOSING]
    by_stratum = chosen_by[np.argsort(strata[chosen_by], kind="stable")]
    folds = np.full(len(strata), -1)
    folds[by_stratum] = np.arange(len(by_stratum)) % FOLDS
    _, numbers = np.unique(training.patients, return_inverse=True)
    of_rows: Numbers = folds[numbers]
    return of_rows


@threadpool_limits.wrap(limits=1)  # type: ignore[untyped-decorator]  # small fits: one thread
def fit_reference(
    name: LocalReference, task: Task, training: Rows, others: Floats, folds: Numbers
) -> Reference:
    """Tune on the training patients' `folds` (n,), fit all of them, and predict `others`."""
    if isinstance(task, Classification):  # weights shift the probabilities that losses measure
        task = task.model_copy(update={"class_weights": "none"})
    fits = FITS[name]
    by_fold = []
    for rest, held_out in _in_turn(folds):
        asked = training.only(held_out)
        tried = fits(task, training.only(rest), asked.inputs)
        by_fold.append([_total_loss(task, predicted, asked) for predicted in tried])
    if not by_fold:  # nobody can be held out: the candidate that trusts these patients least
        return Reference(task.usable(next(fits(task, training, others))), np.inf)
    totals = np.array(by_fold)  # (folds, candidates)
    every = totals.sum(axis=0)
    final = next(islice(fits(task, training, others), int(every.argmin()), None))
    # The least of many losses is optimistic: each fold's is that of the others' choice.
    loss = sum(own[(every - own).argmin()] for own in totals)
    return Reference(task.usable(final), float(loss))


def loss_of_local_arm(
    study: Study, arm: str, work: LocalWork, training: Rows, folds: Numbers
) -> float:
    """Return the same for an arm that trains alone: `work` is its first round's, on everybody."""
    total = 0.0
    for rest, held_out in _in_turn(folds):
        left = work.only(torch.from_numpy(rest))
        for round_number in range(1, study.rounds + 1):
            at = study.training.at(round_number, study.rounds)
            left = replace(left, round=round_number, training=at)
            outcome = take_step(study.arms[arm], left, study.build_context.layout)
            assert isinstance(outcome, LocalOutcome)
            left = replace(left, received=left.received + outcome.delta, kept=outcome.keep)
        inputs = work.inputs[torch.from_numpy(held_out)]
        predicted = predictions_of(study.task, work.model, left.received, inputs)
        total += _total_loss(study.task, predicted.cpu().numpy(), training.only(held_out))
    return total


def _in_turn(folds: Numbers) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield the rows without each fold, and the fold's; nothing with one fold."""
    numbers = np.unique(folds[folds >= 0])
    for number in numbers if len(numbers) > 1 else ():
        yield np.flatnonzero((folds >= 0) & (folds != number)), np.flatnonzero(folds == number)


def _total_loss(task: Task, predicted: Floats, patients: Rows) -> float:
    """Return the sum of the verdict's losses, each patient counting once."""
    of_patients = task.predictions_of_patients(task.usable(predicted), patients.patients)
    truth = task.targets_of_patients(patients.targets, patients.patients)
    return float(task.patient_losses(of_patients, truth).sum())


def _ridge(task: Task, training: Rows, others: Floats) -> Iterator[Floats]:
    """Yield predictions from the strongest to the weakest shrinkage, each warm-started."""
    from scipy.optimize import minimize

    mean, deviation = training.inputs.mean(axis=0), training.inputs.std(axis=0)
    deviation = np.where(deviation > 1e-9, deviation, 1.0)
    inputs, other_inputs = (
        torch.from_numpy((each - mean) / deviation) for each in (training.inputs, others)
    )
    outputs, width = task.num_outputs, inputs.shape[1]
    as_trained = as_tensor(training.targets)
    loss = task.training_loss(as_trained)

    def parts(point: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shared, own, intercepts = torch.split(point, [width, outputs * width, outputs])
        return shared, own.reshape(outputs, width), intercepts

    def predicted(point: Tensor, of: Tensor) -> Tensor:
        shared, own, intercepts = parts(point)
        return of @ (own + shared).T + intercepts

    start = task.base_rate_outputs(as_trained).double()

    def objective(values: Floats, strength: float) -> tuple[float, Floats]:
        point = torch.from_numpy(values).requires_grad_()
        shared, own, intercepts = parts(point)
        total = len(inputs) * loss(predicted(point, inputs), as_trained)
        total = total + strength * (shared.square().sum() + own.square().sum())
        total = total + INTERCEPT_STRENGTH * (intercepts - start).square().sum()
        (gradient,) = torch.autograd.grad(total, point)
        return float(total.detach()), gradient.numpy()

    point = np.concatenate([np.zeros((1 + outputs) * width), start.numpy()])
    for strength in STRENGTHS:
        found = minimize(
            objective,
            point,
            args=(strength,),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": 500, "gtol": 1e-6, "ftol": 1e-11},
        )
        point = found.x
        yield task.predictions(predicted(torch.from_numpy(point), other_inputs)).numpy()


def _boosted(task: Task, training: Rows, others: Floats) -> Iterator[Floats]:
    """Yield the base rate's predictions, then for either size of trees those of ever more trees."""
    base_rate = np.tile(task.base_rate(training.targets), (len(others), 1))
    yield base_rate
    for sizes in TREES:
        stages = islice(_stages(task, training, others, sizes), STEP - 1, None, STEP)
        # Where nothing can be fitted, because all patients are alike, the base rate stays.
        yield from islice(chain(stages, repeat(base_rate)), MOST_TREES // STEP)


def _stages(
    task: Task, training: Rows, others: Floats, options: Mapping[str, Any]
) -> Iterator[Floats]:
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    options = {
        **{"learning_rate": 0.1, "max_iter": MOST_TREES},
        **{"early_stopping": False, "random_state": 0},
        **options,
    }
    if isinstance(task, Regression):
        if isinstance(task, Count):  # positive rates: the squared error may give 0
            if not training.targets.any():
                return
            options["loss"] = "poisson"
        numbers = HistGradientBoostingRegressor(**options).fit(training.inputs, training.targets)
        yield from (each[:, None] for each in numbers.staged_predict(others))
        return
    if isinstance(task, Survival):
        yield from _hazards(task, training, others, options)
        return
    assert isinstance(task, Classification)
    present = np.unique(training.targets)
    if len(present) < 2:
        return
    classes = HistGradientBoostingClassifier(**options).fit(training.inputs, training.targets)
    for chances in classes.staged_predict_proba(others):
        every = np.zeros((len(others), task.num_outputs))
        every[:, present] = chances
        yield every


def _hazards(
    task: Survival, training: Rows, others: Floats, options: Mapping[str, Any]
) -> Iterator[Floats]:
    """Predict with one classifier of all intervals at risk; survival is 1 minus its events."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    died, survived = task.seen_intervals(training.targets)
    seen = (died + survived) > 0  # (n, intervals)
    patient, interval = np.nonzero(seen)
    events = died[seen] > 0
    if events.all() or not events.any():
        return
    trees = HistGradientBoostingClassifier(**options).fit(
        np.column_stack([training.inputs[patient], interval]), events
    )
    intervals = died.shape[1]
    asked = np.column_stack(
        [np.repeat(others, intervals, axis=0), np.tile(np.arange(intervals), len(others))]
    )
    for chances in trees.staged_predict_proba(asked):
        yield np.cumprod(1 - chances[:, 1].reshape(len(others), intervals), axis=1)


FITS: Mapping[LocalReference, Fits] = MappingProxyType({"ridge": _ridge, "boosted_trees": _boosted})
