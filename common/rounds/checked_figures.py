"""Checks the figures that the user's hospital sends: those of a round, and the final ones."""

import math
from collections.abc import Mapping

import torch

from erosion.common.aggregation.vectors import is_finite
from erosion.common.protocol.messages import (
    EvaluateReply,
    EvaluateResult,
    FinalMetrics,
    Metrics,
    conclude,
    significance_of,
)
from erosion.common.rounds.cross_fitting import folds_of
from erosion.common.rounds.records import RunState
from erosion.common.study.sections import BEST_LOCAL
from erosion.common.study.study import Study
from erosion.common.support.text import printable
from erosion.common.tasks.metric import Metric, is_within
from erosion.common.tasks.task import Task


def problem_with_evaluation(
    result: EvaluateResult, study: Study, finals: Mapping[str, RunState]
) -> str | None:
    """Why the user's final figures cannot be used; None where they can. A fold has none."""
    header, loss = result.header, study.task.verdict_metric
    if header.hospital != study.user:
        return f"it answered as {header.hospital!r}"
    if study.fold is not None:
        return "it has figures of a fold" if header.arms or result.personal else None
    if missing := sorted(finals.keys() - header.arms.keys()):
        return f"its figures lack {', '.join(missing)}"
    if strange := sorted((header.arms.keys() | result.personal.keys()) - finals.keys()):
        return f"it has figures of {', '.join(strange)[:100]}, which it was not asked about"
    compared = header.comparison
    is_mixed = compared is not None and compared.reference == BEST_LOCAL
    known = {*study.references, *([BEST_LOCAL] if is_mixed else [])}
    if unlike := sorted(known ^ header.references.keys()):
        return f"its figures of local references are others than the study's: {unlike[0][:100]}"
    if problem := _problem_with_comparison(header, study):
        return problem
    figures = [*header.arms.values(), *header.references.values()]
    figures += [header.base_rate] if header.base_rate else []
    if len({found.num_patients for found in figures}) > 1:
        return "it tested its arms on different patients"
    if any(found.get(loss) is None for found in figures):
        return f"its figures lack the {loss} of an arm, or of the base rate"
    for found in figures:
        if problem := problem_with_metrics(found, study.task):
            return problem
        if problem := problem_with_intervals(found, study.task):
            return problem
    if strange := sorted(header.class_counts.keys() - study.task.group_names):
        named = printable(strange[0], at_most=50)
        return f"it counted patients of {named!r}, which the study has not"
    features = {feature.name for feature in getattr(study.task, "features", ())}
    if header.best_column is not None and header.best_column.name not in features:
        named = printable(header.best_column.name, at_most=50)
        return f"it measured the column {named!r}, which the study has not"
    for arm, personal in result.personal.items():
        dim = len(finals[arm].params)
        if personal.dtype != torch.float32 or personal.dim() not in (1, 2):
            return f"its personal parameters of {arm} are no vectors of torch.float32"
        if not personal.numel() or personal.shape[-1] != dim:
            return f"its personal parameters of {arm} have shape {tuple(personal.shape)}"
        if not is_finite(personal.flatten()):
            return f"its personal parameters of {arm} are not finite"
    return None


def problem_with_metrics(found: Metrics, task: Task) -> str | None:
    """Why no model can have these figures; None where one can, or where they are undefined."""
    for metric in task.metrics:
        value = found.get(metric.name)
        if value is not None and not metric.allows(value):
            return f"its {metric.label} is {value:g}, expected {_bounds(metric)}"
    return None


def problem_with_intervals(found: FinalMetrics, task: Task) -> str | None:
    """Why they are none of these figures."""
    if strange := [name for name in found.intervals if found.get(name) is None]:
        name = printable(strange[0], at_most=50)
        return f"it has an interval of {name!r}, and no such figure"
    for metric in task.metrics:
        if (ends := found.intervals.get(metric.name)) is None:
            continue
        what = f"the interval of its {metric.label} is {ends.low:g} to {ends.high:g}"
        if ends.low > ends.high:
            return f"{what}, the wrong way round"
        if not (metric.allows(ends.low) and metric.allows(ends.high)):
            return f"{what}, expected {_bounds(metric)}"
    return None


def _bounds(metric: Metric) -> str:
    ends = [(metric.least, "at least"), (metric.most, "at most")]
    return " and ".join(f"{words} {end:g}" for end, words in ends if math.isfinite(end))


def _problem_with_comparison(header: EvaluateReply, study: Study) -> str | None:
    """Where all hospitals are users, what one says stands beside what the others say."""
    found = header.comparison
    if (found is None) != (study.comparison is None):
        return "it did not compare what the study declares"
    if found is None or study.comparison is None:
        return None
    arm, candidates = study.comparison
    parts = max(1, len(folds_of(study)))
    best = [name for name in candidates if found.chosen.get(name)] or [candidates[0]]
    expected = BEST_LOCAL if len(best) > 1 else best[0]
    if (found.arm, found.reference) != (arm, expected):
        return "it did not compare what the study declares"
    chooses = len(candidates) > 1
    if found.chosen.keys() != set(candidates if chooses else ()) or sum(found.chosen.values()) != (
        parts if chooses else 0
    ):
        return "it did not choose its reference once in each training part"
    cuts = study.evaluation.repeats if study.evaluation.repeats > 1 else 0
    if len(found.p_by_cut) != cuts:
        return "its p-values are not those of the study's cuts into folds"
    if (found.level, found.strict) != (significance_of(study), study.evaluation.strict):
        return "it compared by another rule than the study's"
    if found.num_patients != header.arms[found.arm].num_patients:
        return "it compared other patients than it tested"
    if found.smallest_class > found.num_patients:
        return "a group of its patients is larger than all of them"
    most = study.task.largest_difference
    if not is_within(found.mean_difference, -most, most):
        return f"its arms differ by {found.mean_difference:g}, expected at most {most:g}"
    shown = conclude(found.mean_difference, found.p_value, found.smallest_class, found.level)
    if found.conclusion != shown:
        return f"it says {found.conclusion!r}, where its figures show {shown!r}"
    return None
