"""A linear model as one page that computes without a network: `calculator.html`."""

import base64
import hashlib
import json
from collections.abc import Iterator
from math import exp, isfinite
from typing import Any

import torch
from markupsafe import Markup

from erosion_common.errors import CheckpointError
from erosion_common.protocol.performance import Estimate, ModelFigures
from erosion_common.protocol.scaling import NOT_FOUND
from erosion_common.tasks.count import Count
from erosion_common.tasks.features import CategoryFeature
from erosion_common.tasks.inputs import TabularTask
from erosion_server.export import saved_run
from erosion_server.export.saved_run import SavedRun
from erosion_server.output.figures import estimate_text
from erosion_server.output.pages import TEMPLATES, render_page

MOST_FIELDS = 30  # more than that nobody fills in by hand
USUAL = 4.0  # deviations from the mean; beyond, a person is asked about the unit
FEW = "too few patients"


def calculator_page(saved: SavedRun) -> str:
    """Return the page. Raises CheckpointError for a model that has none."""
    task = saved.card.task
    if not isinstance(task, TabularTask) or saved.card.model.name != "logistic":
        raise CheckpointError(
            "A calculator is of a linear model of a table (model.name = 'logistic'); this one is"
            f" {saved.card.model.described()}",
            remedy="Use --onnx.",
        )
    if len(task.features) > MOST_FIELDS:
        raise CheckpointError(
            f"A calculator has at most {MOST_FIELDS} fields, and the model reads"
            f" {len(task.features)} columns",
            remedy="Use --onnx.",
        )
    saved_run.output_names(saved.card)
    script = (TEMPLATES / "calculator.js").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    fields, thresholds, figures = [*_fields(saved, task)], _thresholds(saved), _figures(saved)
    target = task.target_columns[-1].name
    labels, unit = [*_labels(task)], getattr(task, "unit", "")
    asked = _asked(task, figures)
    model = {
        "predicts": task.predicts,
        "fields": fields,
        "inputs": saved_run.input_columns(saved.card, task),
        "products": [(each.left, each.right) for each in task.products()],
        "farthest": saved_run.farthest_product(saved.card),
        "members": [_weights(member) for member in saved.members],
        "shares": saved.shares,
        "centre": getattr(task, "centre", 0.0),
        "spread": getattr(task, "spread", 1.0),
        "is_rate": isinstance(task, Count),
        "start": getattr(task, "start", 0.0),
        "unit": unit,
        "labels": labels,
        "asked": asked,
        "thresholds": thresholds,
        "groups": [] if figures is None else [*_groups(figures)],
    }
    asks = {
        "number": f"Predicted {target}",
        "times": f"Risk of the event {labels[asked]}" if labels else "",
        "classes": f"Risk of {target}: {labels[-1]}" if len(labels) == 2 else f"Likeliest {target}",
    }
    return render_page(
        "calculator.html",
        title=f"{saved.card.study}, for {saved.run.shown(saved.card.user)}",
        script=Markup(script),
        script_hash=Markup(f"sha256-{digest}"),
        model=Markup(json.dumps(model).replace("<", "\\u003c")),
        warnings=saved.warnings(),
        fields=fields,
        asks=asks[task.predicts],
        labels=labels,
        thresholds=[(f"{100 * each:g} %", *_known(figures, each)) for each in thresholds],
        rows=[*saved.card_rows(), ("Run", f"{saved.card.run} of {saved.run.result.started[:10]}")],
    )


def _fields(saved: SavedRun, task: TabularTask) -> Iterator[dict[str, Any]]:
    first = {
        column.feature: column for column in reversed(saved_run.input_columns(saved.card, task))
    }
    for place, (feature, may_lack) in enumerate(
        zip(task.features, saved_run.may_be_missing(task), strict=True)
    ):
        field = {"name": feature.name, "unit": feature.unit, "may_lack": may_lack, "categories": ()}
        empty = saved_run.MISSING[task.policy(feature)] if may_lack else "needed"
        if isinstance(feature, CategoryFeature):
            said = f"If it is not known: {empty}" if may_lack else empty
            yield {**field, "categories": feature.categories, "hint": said}
            continue
        column = first[place]
        low, high = feature.range or (-saved_run.LARGEST_NUMBER, saved_run.LARGEST_NUMBER)
        allowed = "" if feature.range is None else f"{low:g} to {high:g}; "
        usual = None
        if saved.card.scaling is not None and column.deviation != NOT_FOUND:
            width = USUAL * column.deviation
            usual = (column.mean - width, column.mean + width)
            if feature.log:
                usual = (exp(usual[0]), exp(usual[1]))
        said = f"{allowed}{f'if empty, {empty}' if may_lack else empty}"
        how = {"winsorise": feature.winsorise, "log": feature.log}
        yield {**field, **how, "range": (low, high), "usual": usual, "hint": said}


def _labels(task: TabularTask) -> Iterator[str]:
    yield from (label.name for label in getattr(task, "classes", ()))
    unit = getattr(getattr(task, "target", None), "unit", "")
    yield from (f"by {point:g} {unit}".strip() for point in getattr(task, "cut_points", ()))


def _asked(task: TabularTask, figures: ModelFigures | None) -> int:
    """Return which of the numbers is the risk: of times that by when its figures count an event."""
    points = [*getattr(task, "cut_points", ())]
    if figures is not None and figures.horizon in points:
        return points.index(figures.horizon)
    return max(0, task.num_outputs - 1)


def _weights(member: torch.nn.Module) -> tuple[list[list[float]], list[float]]:
    """Return a linear model's weights (k, q) and biases (k,)."""
    weight, bias = (each.detach() for each in member.parameters())
    if not all(map(isfinite, (*weight.flatten().tolist(), *bias.tolist()))):
        raise CheckpointError("The model's training diverged: it has no prediction to give.")
    return weight.tolist(), bias.tolist()


def _thresholds(saved: SavedRun) -> list[float]:
    task = saved.card.task
    is_risk = task.predicts == "times" or (task.predicts == "classes" and task.num_outputs == 2)
    return [*saved.run.study.evaluation.thresholds] if is_risk else []


def _figures(saved: SavedRun) -> ModelFigures | None:
    found = [each for each in saved.run.result.performance.models if each.model == saved.card.arm]
    return found[0] if len(found) == 1 else None


def _known(figures: ModelFigures | None, threshold: float) -> list[str]:
    for row in () if figures is None else figures.thresholds:
        if row.threshold == threshold:
            each = (row.sensitivity, row.specificity, row.positive_predictive_value)
            return [FEW if estimate is None else _percent(estimate) for estimate in each]
    return ["not measured"] * 3


def _percent(estimate: Estimate) -> str:
    value, low, high = (f"{100 * end:.0f}" for end in (estimate.value, estimate.low, estimate.high))
    return f"{value} % ({low} to {high} %)"


def _groups(figures: ModelFigures) -> Iterator[tuple[float, int, str]]:
    """Yield the mean prediction of patients with similar ones, their number, what was observed."""
    for group in figures.groups:
        said = f"{_percent(group.observed)} had it"
        if not figures.event:
            said = f"the mean was {estimate_text(group.observed)}"
        yield group.predicted, group.num_patients, said
