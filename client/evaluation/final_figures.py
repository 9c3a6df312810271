"""The final figures of a study: every arm for the user's patients, and the verdict on two arms."""

from collections.abc import Mapping, Sequence

import numpy as np

from erosion.client.dataset.local_dataset import LocalDataset
from erosion.client.dataset.single_column import outcome_of, strength, strength_held_out
from erosion.client.evaluation.cross_fitted import BASE_RATE
from erosion.client.evaluation.metrics import measure_with_intervals, told
from erosion.client.evaluation.verdict import compare
from erosion.common.protocol.messages import (
    FEWEST_OF_A_CLASS,
    BestColumn,
    Comparison,
    EvaluateReply,
    FinalMetrics,
    Scaling,
    significance_of,
)
from erosion.common.study.sections import BEST_LOCAL
from erosion.common.tasks.features import CategoryFeature
from erosion.common.tasks.inputs import TabularTask
from erosion.common.tasks.task import Floats, Targets


def final_figures(
    dataset: LocalDataset,
    predictions: Mapping[str, Floats],
    pooled: Scaling | None,
    better: Sequence[str] = (),
) -> EvaluateReply:
    """What the user's site tells at a study's end.

    `predictions` are each arm's and local reference's, one for each patient: of the test part,
    (n, k), or of all where each was predicted with its fold, (cuts, n, k), and then the base rate's
    among them. `pooled`: the scaling that the coordinator sent. `better`: which of several
    references predicts better, as the training part says, or each fold's in their order.
    """
    study, task = dataset.study, dataset.study.task
    # All patients, where each was predicted with its fold. What metrics take from them is the same
    # for every arm: the commonest class, and how long patients of a survival study were followed.
    targets, training = dataset.measured_patients.outcomes, dataset.trained_outcomes
    arms = {arm: predictions[arm] for arm in study.arms if arm in predictions}
    names = [*study.references, *([BEST_LOCAL] if len(set(better)) > 1 else [])]
    references = {name: predictions[name] for name in names}
    base_rate = predictions.get(BASE_RATE)
    if base_rate is None:
        base_rate = np.tile(task.base_rate(training), (len(targets), 1))

    def measured(predicted: Floats) -> FinalMetrics:
        return measure_with_intervals(
            task,
            predicted,
            targets,
            training,
            resamples=study.evaluation.bootstrap,
            seed=dataset.seed("bootstrap"),
        )

    # An arm's columns are scaled by this hospital's patients alone where it asks nobody else.
    alone = [arm for arm in arms if study.arms[arm].user_only]
    own_scaling = None
    if alone and study.scaling == "federated":
        own_scaling = dataset.scaling(None, alone[0])
    return EvaluateReply(
        hospital=study.user,
        arms={arm: measured(predicted) for arm, predicted in arms.items()},
        references={name: measured(predicted) for name, predicted in references.items()},
        base_rate=measured(base_rate),
        comparison=_verdict(dataset, {**arms, **references}, targets, better),
        scaling=dataset.scaling(pooled),
        own_scaling=own_scaling,
        missing_means=dataset.missing_values,
        best_column=_best_column(dataset),
        class_counts=dataset.cells.groups(task.groups(targets)),
    )


def _best_column(dataset: LocalDataset) -> BestColumn | None:
    """Which feature predicts best by itself: learnt and measured on the patients of the models."""
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
    """What the user's site tells at the end of a fold, whose predictions it keeps."""
    return EvaluateReply(hospital=user, arms={}, comparison=None, scaling=None, class_counts={})


def _verdict(
    dataset: LocalDataset,
    predictions: Mapping[str, Floats],
    targets: Targets,
    better: Sequence[str],
) -> Comparison | None:
    """The declared comparison, if both of its arms were run."""
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
