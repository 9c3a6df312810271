"""The models' figures on the user's held-out patients, with intervals, and the verdict."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from math import ceil, isfinite
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from erosion_client.dataset.local_dataset import LocalDataset
from erosion_client.dataset.single_column import outcome_of, strength, strength_held_out
from erosion_client.evaluation.explanation import (
    coefficients,
    dependence,
    importance,
    linear_effects,
    shown_arm,
)
from erosion_client.evaluation.held_out import BASE_RATE, Explained
from erosion_client.evaluation.performance import by_cut, model_figures, subgroups
from erosion_client.training.request import faults_of
from erosion_common.errors import SiteError
from erosion_common.learning.finished import Predictor
from erosion_common.protocol.messages import (
    FEWEST_OF_A_CLASS,
    LARGEST_FIGURE,
    SIGNIFICANCE,
    BestColumn,
    Comparison,
    EvaluateReply,
    FinalMetrics,
    FinishFigures,
    Interval,
    Metrics,
    Scaling,
    conclude,
    significance_of,
)
from erosion_common.protocol.performance import Performance
from erosion_common.study.sections import BEST_LOCAL
from erosion_common.tasks.features import CategoryFeature
from erosion_common.tasks.inputs import TabularTask
from erosion_common.tasks.survival import Survival
from erosion_common.tasks.task import Bounds, Floats, Targets, Task

CHUNK = 2_000_000  # numbers in memory at a time


def measure(task: Task, predictions: Floats, targets: Targets, training: Targets) -> Metrics:
    """Return the task's metrics of predictions (n, k) for targets (n, ...), one per patient.

    `training` are the targets of the user's training part, for the base rate. With several
    predictions of each patient, (m, n, k), a metric is its mean over them.
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
    """Return metrics with 95 % percentile intervals over `resamples` draws of the patients.

    Where the task also has a score interval of a metric, the wider end of both counts: draws of
    patients with few or no errors hardly differ.

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
    """Clip a figure, such as a diverged model's, to the largest that others accept."""
    return min(max(float(figure), -LARGEST_FIGURE), LARGEST_FIGURE)


def _figures(
    task: Task, predictions: Floats, targets: Targets, weights: Floats, training: Targets
) -> Mapping[str, Floats]:
    each = [task.figures(one, targets, weights, training) for one in by_cut(predictions)]
    return {name: np.mean([figures[name] for figures in each], axis=0) for name in each[0]}


def _score_intervals(
    task: Task, predictions: Floats, targets: Targets, training: Targets
) -> Mapping[str, Bounds]:
    each = [task.score_intervals(one, targets, training) for one in by_cut(predictions)]
    names = set.intersection(*(set(found) for found in each))
    return {name: tuple(np.mean([found[name] for found in each], axis=0)) for name in names}


def _draws(num_patients: int, resamples: int, seed: int) -> Iterator[Floats]:
    """Yield how often each patient is drawn in each resample: (some resamples, n) at a time."""
    generator = np.random.default_rng(seed)
    at_a_time = max(1, CHUNK // num_patients)
    for start in range(0, resamples, at_a_time):
        count = min(at_a_time, resamples - start)
        drawn = generator.integers(num_patients, size=(count, num_patients))
        drawn += np.arange(count)[:, None] * num_patients
        counts = np.bincount(drawn.ravel(), minlength=count * num_patients)
        yield counts.reshape(count, num_patients).astype(np.float64)


def final_figures(
    dataset: LocalDataset,
    predictions: Mapping[str, Floats],
    pooled: Scaling | None,
    better: Sequence[str] = (),
    *,
    explained: Explained | None = None,
    final_model: Predictor | None = None,
    errors: Tensor | None = None,
    finishes: Mapping[str, FinishFigures] = MappingProxyType({}),
) -> EvaluateReply:
    """Return what the user's site sends at a study's end.

    `predictions` are each arm's and local reference's, one per patient: of the test part, (n, k),
    or of all where each was predicted with its fold, (cuts, n, k), including those of the base
    rate. `pooled`: the scaling that the coordinator sent. `better`: which of several references
    predicts better, according to the training part, or to each fold's in order. `explained`: what
    the shown arm's model uses; `final_model`: that one; `errors`: its parameters' standard errors,
    (dim,). `finishes`: of the arms that have one.
    """
    study, task = dataset.study, dataset.study.task
    # All patients, where each was predicted with its fold. What metrics need from them is equal
    # for every arm: the commonest class, and the follow-up times of a survival study.
    targets, training = dataset.measured_patients.outcomes, dataset.trained_outcomes
    arms = {arm: predictions[arm] for arm in study.arms if arm in predictions}
    names = [*study.references, *([BEST_LOCAL] if len(set(better)) > 1 else [])]
    references = {name: predictions[name] for name in names}
    base_rate = predictions.get(BASE_RATE)
    if base_rate is None:
        base_rate = np.tile(task.base_rate(training), (len(targets), 1))

    resamples, seed = study.evaluation.bootstrap, dataset.seed("bootstrap")

    def measured(predicted: Floats) -> FinalMetrics:
        return measure_with_intervals(
            task, predicted, targets, training, resamples=resamples, seed=seed
        )

    # An arm's columns are scaled by this hospital's patients alone where it asks nobody else.
    alone = [arm for arm in arms if study.arms[arm].user_only]
    own_scaling = None
    if alone and study.scaling == "federated":
        own_scaling = dataset.scaling(None, alone[0])
    found = _verdict(dataset, {**arms, **references}, targets, better)
    compared = [] if found is None else [found.arm, found.reference]
    return EvaluateReply(
        hospital=study.user,
        arms={arm: measured(predicted) for arm, predicted in arms.items()},
        references={name: measured(predicted) for name, predicted in references.items()},
        base_rate=measured(base_rate),
        finishes=dict(finishes),
        comparison=found,
        scaling=dataset.scaling(pooled),
        own_scaling=own_scaling,
        missing_means=dataset.missing_values,
        best_column=_best_column(dataset),
        class_counts=dataset.cells.groups(task.groups(targets)),
        performance=_performance(
            dataset,
            {**arms, **references},
            pooled,
            explained or Explained(),
            final_model,
            errors,
            compared,
        ),
    )


def _performance(
    dataset: LocalDataset,
    predictions: Mapping[str, Floats],
    pooled: Scaling | None,
    explained: Explained,
    final_model: Predictor | None,
    errors: Tensor | None,
    compared: Sequence[str],
) -> Performance:
    """Return curves, groups and effects; without those that cannot be computed."""
    study, arm = dataset.study, shown_arm(dataset.study)
    if arm not in predictions:
        return Performance()
    try:
        models = model_figures(dataset, predictions, compared or [arm])
    except np.linalg.LinAlgError:
        return Performance(why_not="The curves could not be computed from these predictions.")
    ranked, shown, effects = [], [], []
    if explained.permuted_losses is not None:
        ranked = importance(dataset, by_cut(explained.permuted_losses))
    if final_model is not None:
        names = [each.column for each in ranked]
        with suppress(SiteError), faults_of(study.model):  # it may fail on values of no patient
            shown = [*dependence(dataset, final_model, pooled, arm, names)]
        found = linear_effects(dataset.study, final_model)
        if found is not None:
            scaling = dataset.scaling(pooled, arm)
            known = None if errors is None else linear_effects(dataset.study, errors)
            effects = coefficients(dataset, found, scaling, explained.effects_in_folds, known)
    few = f"Fewer than {dataset.cells.cell} of the tested patients had the outcome, or had not."
    if isinstance(study.task, Survival):
        few = (
            f"By each cut point fewer than {dataset.cells.cell} of the tested patients had had the"
            " event, or were followed beyond it."
        )
    return Performance(
        models=tuple(models),
        shown=arm,
        subgroups=tuple(subgroups(dataset, predictions[arm])),
        importance=tuple(ranked),
        dependence=tuple(shown),
        coefficients=tuple(effects),
        why_not="" if models else few,
    )


def _best_column(dataset: LocalDataset) -> BestColumn | None:
    """Return the feature that predicts best alone, on the same patients as the models."""
    task = dataset.study.task
    if not isinstance(task, TabularTask):
        return None
    is_cross_fitted = dataset.study.evaluation.folds is not None
    if is_cross_fitted:
        outcome = outcome_of(task, dataset.outcomes)
    else:
        parts = dataset.trained_outcomes, dataset.tested_outcomes
        outcome = outcome_of(task, np.concatenate(parts))
        trained = np.arange(len(outcome)) < len(parts[0])
    found: dict[str, float] = {}
    for feature, values in dataset.columns(every=is_cross_fitted):
        is_category = isinstance(feature, CategoryFeature)
        found[feature.name] = (
            strength(values, outcome, is_category=is_category)
            if is_cross_fitted
            else strength_held_out(values, outcome, trained, is_category=is_category)
        )
    name = max(found, key=found.__getitem__)
    return BestColumn(name=name, measure=told(found[name])) if found[name] else None


def no_figures_yet(user: str) -> EvaluateReply:
    """Return what the user's site sends at the end of a fold; it keeps the predictions."""
    return EvaluateReply(hospital=user, arms={}, comparison=None, scaling=None, class_counts={})


def _verdict(
    dataset: LocalDataset,
    predictions: Mapping[str, Floats],
    targets: Targets,
    better: Sequence[str],
) -> Comparison | None:
    study = dataset.study
    if study.comparison is None or study.comparison[0] not in predictions:
        return None
    arm, candidates = study.comparison
    chosen = {name: better.count(name) for name in candidates} if better else {}
    reference = BEST_LOCAL if len(set(better)) > 1 else [*better, *candidates][0]
    if reference not in predictions:
        return None
    found = compare(
        study.task,
        (arm, reference),
        (predictions[arm], predictions[reference]),
        targets,
        seed=dataset.seed("comparison"),
        level=significance_of(study),
        strict=study.evaluation.strict,
        comparisons=len(study.hospitals),  # each has one where all are users
    )
    smallest = dataset.cells.at_least(
        found.smallest_class, FEWEST_OF_A_CLASS, total=found.num_patients
    )
    return found.model_copy(update={"smallest_class": smallest, "chosen": chosen})


EXACT_UP_TO = 16  # patients: 65,536 sign patterns
RANDOM_FLIPS = 20_000  # sign patterns, where few comparisons are adjusted together
MOST_FLIPS = 1_000_000


def compare(
    task: Task,
    arms: tuple[str, str],
    predictions: tuple[Floats, Floats],
    targets: Targets,
    *,
    seed: int,
    level: float = SIGNIFICANCE,
    strict: bool = False,
    comparisons: int = 1,
) -> Comparison:
    """Compare the first arm with the second, by the task's loss of each test patient.

    `predictions` are each (n, k); or (m, n, k), several of each patient, with averaged losses
    first. A difference is claimed only if p <= `level` and the smallest group of patients that the
    task needs has at least five: those outside the commonest class, or events. If `strict`, the
    p-value is the larger one of these and of these with one patient more, for which the better arm
    errs as badly as the loss allows: errors on rare patients may be absent from a sample. So it can
    be adjusted as any p-value. `comparisons`: how many such p-values may be adjusted together, see
    `flips_for`. With several predictions of each patient the p-value of each alone is given, too.
    """
    flips = flips_for(comparisons, level)

    def p_of(differences: Floats) -> float:
        p_value = sign_flip_p_value(differences, seed=seed, flips=flips)
        if not strict:
            return p_value
        worst = task.largest_difference
        return max(p_value, _p_value_with_one_more(differences, worst, seed=seed, flips=flips))

    arm, reference = (_losses(task, p, targets) for p in predictions)
    differences: Floats = arm.mean(axis=0) - reference.mean(axis=0)
    smallest = task.smallest_group(targets)
    mean = float(differences.mean())
    p_value = p_of(differences)
    return Comparison(
        arm=arms[0],
        reference=arms[1],
        num_patients=len(differences),
        smallest_class=smallest,
        mean_difference=told(mean),
        p_value=p_value,
        conclusion=conclude(mean, p_value, smallest, level),
        level=level,
        strict=strict,
        p_by_cut=tuple(map(p_of, arm - reference)) if len(arm) > 1 else (),
        flips=0 if len(differences) <= EXACT_UP_TO else flips,
    )


def _losses(task: Task, predictions: Floats, targets: Targets) -> Floats:
    return np.stack([task.patient_losses(one, targets) for one in by_cut(predictions)])


def _p_value_with_one_more(differences: Floats, worst: float, *, seed: int, flips: int) -> float:
    """Return it with one more patient, as far out on the other side; 1 if that turns the mean."""
    sign = np.sign(differences.sum())
    if not worst < abs(differences.sum()):
        return 1.0
    return sign_flip_p_value(np.append(differences, -sign * worst), seed=seed, flips=flips)


def flips_for(comparisons: int, level: float) -> int:
    """Return how many random patterns keep the smallest p-value, times `comparisons`, in `level`.

    Holm's method multiplies it like that. The maximum is MOST_FLIPS.
    """
    return min(max(RANDOM_FLIPS, ceil(comparisons / level)), MOST_FLIPS)


def sign_flip_p_value(differences: Floats, *, seed: int, flips: int = RANDOM_FLIPS) -> float:
    """Return the two-sided p-value of paired differences (n,) having mean 0.

    If the arms are alike, each patient's difference could as well have had the other sign. The
    p-value is the share of sign patterns with a sum at least as far from 0 as the observed one: all
    of them up to 16 patients, else `flips` random ones and the observed one.
    """
    num_patients = len(differences)
    # Patterns with the observed sum must count, regardless of rounding.
    observed = abs(differences.sum()) - 1e-12 * np.abs(differences).sum()
    if num_patients <= EXACT_UP_TO:
        patterns = np.arange(2**num_patients)[:, None] >> np.arange(num_patients) & 1
        return float(np.mean(_far_out(patterns, differences, observed)))
    generator = np.random.default_rng(seed)
    at_a_time = max(1, CHUNK // num_patients)
    count = 0
    for start in range(0, flips, at_a_time):
        rows = min(at_a_time, flips - start)
        patterns = generator.integers(2, size=(rows, num_patients), dtype=np.int8)
        count += int(_far_out(patterns, differences, observed).sum())
    return (1 + count) / (1 + flips)


def _far_out(
    patterns: NDArray[np.int64] | NDArray[np.int8], differences: Floats, observed: float
) -> NDArray[np.bool_]:
    """Return, per row of 0/1 (some, n), whether the sum with these signs is as far out."""
    sums = 2 * (patterns.astype(np.float64) @ differences) - differences.sum()
    far: NDArray[np.bool_] = np.abs(sums) >= observed
    return far
