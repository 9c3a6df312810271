"""Another hospital's final model on this one's patients: how well it ranks them, and calibration.

What leaves are figures over all of the patients, each with its interval, to three digits; the
numbers of patients are those that describe them before training, multiples of a cell.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from erosion_client.dataset.local_dataset import LocalDataset
from erosion_client.evaluation.final_figures import measure_with_intervals
from erosion_client.evaluation.performance import model_figures
from erosion_client.training.request import MOST_MODELS, arm_of
from erosion_common.errors import Refusal
from erosion_common.learning.finished import (
    LAYERS,
    Finished,
    Predictor,
    predicted_by,
    problem_with_layers_of,
)
from erosion_common.protocol.messages import EvaluateReply, EvaluateRequest, FinalMetrics
from erosion_common.protocol.performance import Performance

DIGITS = 3
_EXACT = {"horizon"}  # a cut point of the study


def external_figures(
    hospital: str, dataset: LocalDataset, request: EvaluateRequest
) -> EvaluateReply:
    """Return the figures of the request's model, which is of one arm.

    Raises Refusal where a class, or those with or without the event, are fewer than a cell here.
    """
    task, study, cells = dataset.study.task, dataset.study, dataset.cells
    if len(request.parameters) != 1:
        raise Refusal(
            f"{hospital} measures the model of one arm, not of {len(request.parameters)}."
        )
    ((arm, parameters),) = request.parameters.items()
    arm_of(request, arm)
    if lacking := task.why_not_here():
        raise Refusal(lacking)
    targets = dataset.trained_outcomes
    counts = task.groups(targets) or {"": len(targets)}
    if min(counts.values()) < cells.cell:
        raise Refusal(
            f"{hospital} measures no model where it has fewer than {cells.cell} patients of a"
            f" class, or with or without the event (limits.min_cell = {cells.cell})."
        )
    told, summary = _told_counts(dataset, counts), dataset.summary
    dataset.begin_validation()
    layers = request.enclosed.get(arm, {}).get(LAYERS)
    predicted = {arm: _predictions(dataset, parameters, layers, request)}
    measured = measure_with_intervals(
        task,
        predicted[arm],
        targets,
        targets,
        resamples=study.evaluation.bootstrap,
        seed=dataset.seed("bootstrap"),
    )
    shown = _rounded(measured, summary.num_patients)
    for metric in task.metrics:
        if metric.of_data:  # it would tell how many patients are of a class
            shown[metric.name] = None
            shown["intervals"].pop(metric.name, None)
    try:
        models = model_figures(dataset, predicted, [arm])
    except np.linalg.LinAlgError:
        models = []
    return EvaluateReply(
        hospital=hospital,
        arms={arm: FinalMetrics.model_validate(shown)},
        comparison=None,
        scaling=None,
        class_counts=told,
        performance=Performance(
            models=tuple(
                type(model).model_validate(
                    {
                        **_rounded(model, summary.num_patients),
                        "num_events": told.get(model.event),
                        **{"prevalence": None, "curves": {}, "groups": (), "thresholds": ()},
                    }
                )
                for model in models
            ),
            shown=arm,
        ),
    )


def _told_counts(dataset: LocalDataset, counts: Mapping[str, int]) -> dict[str, int | None]:
    """Return patients by class, as the summary rounds them."""
    shares = next(c.shares for c in reversed(dataset.summary.columns) if c.kind == "outcome")
    return {name: shares.get(name) for name in counts if name}


def _predictions(
    dataset: LocalDataset, parameters: Tensor, layers: Tensor | None, request: EvaluateRequest
) -> Any:
    task, dim = dataset.study.task, dataset.dim
    is_vector = parameters.dim() in (1, 2) and parameters.shape[-1] == dim
    is_vector = is_vector and 0 < parameters.numel() <= MOST_MODELS * dim
    if not is_vector or parameters.is_complex() or not bool(parameters.isfinite().all()):
        raise Refusal(
            f"The request brings a model that is not of {dim} finite parameters, or more than"
            f" {MOST_MODELS} models."
        )
    inputs = dataset.as_delivered(request.scaling, request.missing_means).inputs
    parameters = parameters.to(inputs.device)
    predictor: Predictor = parameters
    if layers is not None:
        problem = problem_with_layers_of(layers, dataset.study.build_context.layout())
        if problem or parameters.dim() > 1:
            raise Refusal(f"The last layers of the request's model {problem or 'are of several'}.")
        predictor = Finished(parameters, layers.to(inputs.device))
    predicted = predicted_by(task, dataset.model, predictor, inputs)
    of_rows = task.usable(predicted.cpu().numpy())
    return task.predictions_of_patients(of_rows, dataset.training_patients.numpy())


def _rounded(figures: Any, num_patients: int) -> dict[str, Any]:
    """Return the values with DIGITS digits, and the number of patients as described."""

    def shown(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {k: v if k in _EXACT else shown(v) for k, v in value.items()}
        return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value

    return {**shown(figures.model_dump()), "num_patients": num_patients}
