"""The report's sections on predictions: charts, thresholds, groups of patients, and effects."""

from math import exp, log
from typing import Any

from erosion_common.protocol.performance import (
    Coefficient,
    Estimate,
    EstimateName,
    ModelFigures,
    Performance,
)
from erosion_common.support.text import significant
from erosion_common.tasks.count import Count
from erosion_common.tasks.preparations import LOGARITHM
from erosion_server.output import charts, figures
from erosion_server.output.figures import estimate_cell
from erosion_server.output.pages import Cell, Row
from erosion_server.output.report_patients import MOST_COLUMNS_SHOWN
from erosion_server.output.run_data import RunData
from erosion_server.run.result import Result, unit_of

FEW = "too few patients on a side, or up to another threshold"
LARGEST_LOG_RATIO = 3.0  # in a plot of ratios: 20 and 1/20
UNSEEN = 1e-6  # an effect that no patient has moved


def performance_values(run: RunData) -> dict[str, Any]:
    """Return what the page shows of predictions, groups of patients and effects."""
    found, task = run.result.performance, run.study.task
    several = len({model.event for model in found.models}) > 1
    chosen = found.models if several else found.models[: figures.MOST_SHOWN]
    models = [with_own_metric(figures.drawable(model), run.result) for model in chosen]
    is_number = bool(models) and not models[0].event
    unit = unit_of(task)
    time_unit = getattr(getattr(task, "target", None), "unit", "")
    apart = list(figures.discrimination(models))
    calibrated = list(figures.calibration(models, unit))
    decided = figures.decisions(models)
    timed = list(figures.over_time(models, time_unit))
    of_unit = unit and f", {unit}"
    # A risk is by the last cut point here, which is not always that of the other figures.
    points = getattr(task, "cut_points", ())
    by = f" by {points[-1]:g} {time_unit}".rstrip() if points else ""
    outcome = f"mean prediction{of_unit}" if is_number else f"mean risk{by}, %"
    dependent = list(
        figures.dependences(found.dependence, outcome, run.units, is_share=not is_number)
    )
    spread = figures.residuals(models)
    first = models[0] if models else None
    leads = models if several else models[:1]
    decisive = map(figures.drawable, run.decisive.performance.models)
    files = [*apart, *calibrated, *timed, *dependent, *figures.tables(found)]
    files += [each for each in (decided, spread) if each is not None]
    return {
        "shown": found.shown,
        "why_no_curves": found.why_not,
        "apart": apart,
        "calibrated": calibrated,
        "is_number": is_number,
        "of_unit": of_unit,
        "decided": decided,
        "useful": [
            (m.model + f"’s risk of {m.event}" * several, figures.useful_range(exact))
            for m, exact in zip(leads, decisive, strict=False)
        ],
        "thresholds": [
            (f"{m.event}: {row[0]}" if several else row[0], *row[1:])
            for m in leads
            for row in _thresholds(m)
        ],
        "timed": timed,
        "horizon": run.horizon(first),
        "errors": [
            [significant(x, 4) if isinstance(x, float) else str(x) or "–" for x in row]
            for row in (spread.rows if spread is not None else ())
        ],
        "groups": _groups(run, found),
        "dependent": dependent,
        "important": _important(found),
        "files": files,
        **_effects(run, found),
    }


def with_own_metric(model: ModelFigures, result: Result) -> ModelFigures:
    """Return it with the slope (numbers) or AUROC (two classes) of the key figures."""
    arm = result.arms.get(model.model)
    metrics = result.references.get(model.model) if arm is None else arm.metrics
    name: EstimateName = "auroc" if model.event else "calibration_slope"
    interval = None if metrics is None else metrics.intervals.get(name)
    if metrics is None or interval is None or len(result.class_counts) > 2:
        return model
    own = Estimate(value=metrics[name], low=interval.low, high=interval.high)
    return model.model_copy(update={"estimates": {**model.estimates, name: own}})


def _thresholds(model: ModelFigures) -> list[Row]:
    def share(found: Estimate | None) -> Cell:
        if found is None:
            return Cell("–")
        ends = f"{100 * found.low:.0f}–{100 * found.high:.0f}"
        return Cell(f"{100 * found.value:.0f} %", ends)

    rows: list[Row] = []
    for row in model.thresholds:
        threshold, benefit = f"{100 * row.threshold:g} %", row.net_benefit
        if row.alerts is None:
            rows.append((threshold, FEW, "", "", "", "", ""))
            continue
        last = Cell("–")
        if benefit is not None:
            last = estimate_cell(benefit, 3)
        shares = (
            row.sensitivity,
            row.specificity,
            row.positive_predictive_value,
            row.negative_predictive_value,
        )
        rows.append((threshold, f"{100 * row.alerts:.0f}", *map(share, shares), last))
    return rows


def _groups(run: RunData, found: Performance) -> list[Row]:
    whole = found.models[0].estimates.get("auroc") if found.models else None
    arm = run.result.arms.get(found.shown)
    reference = whole.value if whole else arm.metrics.get("r2") if arm else None
    lows = [each.low for group in found.subgroups if (each := group.discrimination) is not None]
    span = (min([0.4, *lows]), 1.0)
    rows: list[Row] = []
    for group in found.subgroups:
        tested = "too few" if group.num_patients is None else str(group.num_patients)
        at = None if group.num_patients is None else reference
        drawn = charts.strip(group.discrimination, span, at)
        figures = map(estimate_cell, (group.discrimination, group.gap, group.calibration))
        rows.append((f"{group.column}: {group.group}", tested, drawn, *figures))
    return rows


def _important(found: Performance) -> list[Row]:
    shown = found.importance[:MOST_COLUMNS_SHOWN]
    ends = [0.0, *(each.loss.low for each in shown), *(each.loss.high for each in shown)]
    span = (min(ends), max(*ends, min(ends) + 1e-9))
    return [
        (each.column, estimate_cell(each.loss, 3), charts.strip(each.loss, span, 0.0))
        for each in shown
    ]


def _effects(run: RunData, found: Performance) -> dict[str, Any]:
    """Return a linear model's coefficients: ratios of odds or hazards, or differences."""
    task = run.study.task
    is_ratio = task.predicts != "number" or isinstance(task, Count)
    ratios = {"classes": "Odds ratio", "times": "Hazard odds ratio"}
    what = "Rate ratio" if isinstance(task, Count) else ratios.get(task.predicts, "Difference")
    unit = "" if is_ratio else unit_of(task)

    def shown(estimate: Estimate) -> Estimate:
        if not is_ratio:
            return estimate
        ends = estimate.model_dump().items()
        return Estimate(**{name: exp(min(end, 50.0)) for name, end in ends})

    has_errors = any(each.pooled is not None for each in found.coefficients)
    has_interval = has_errors or any(each.refits is not None for each in found.coefficients)
    features = {feature.name: feature for feature in getattr(run.study.task, "features", ())}
    summary = run.result.patients.get(run.result.user)
    deviations = {} if summary is None else {c.name: c.deviation for c in summary.columns}
    curved = {name for name, feature in features.items() if getattr(feature, "knots", ())}
    told = [
        each
        for each in found.coefficients
        if each.column not in curved
        and not (each.category == "missing" and abs(each.value) < UNSEEN)  # nobody lacks it
    ]

    def per(each: Coefficient) -> str:
        """Return by how much a number is moved."""
        deviation = deviations.get(each.column)
        if each.category == LOGARITHM and getattr(features[each.column], "log", False):
            return "per doubling"
        if each.category is not None or not deviation:
            return ""
        return f"per {significant(deviation, 2)} {run.units.get(each.column, '')}".strip()

    every = []
    for each in told[:MOST_COLUMNS_SHOWN]:
        plain = Estimate(value=each.value, low=each.value, high=each.value)
        alone = None if each.alone is None else shown(each.alone)
        every.append((each, shown(each.pooled or each.refits or plain), alone))
    ends = [end for _, *pair in every for e in pair if e is not None for end in (e.low, e.high)]
    reach = max((abs(log(max(end, 1e-9))) if is_ratio else abs(end) for end in ends), default=1.0)
    reach = max(1e-9, min(reach, LARGEST_LOG_RATIO) if is_ratio else reach)
    span = (exp(-reach), exp(reach)) if is_ratio else (-reach, reach)
    has_alone = any(alone is not None for *_, alone in every)
    rows: list[Row] = []
    for each, own, alone in every:
        name = each.column if each.category is None else f"{each.column}: {each.category}"
        drawn = charts.strip(own, span, float(is_ratio), alone, logarithmic=is_ratio)
        cell = estimate_cell(own)
        in_unit = significant(own.value).replace("-", "\u2212")  # which may be small or large
        own_cell = cell if has_interval else Cell(cell.value if is_ratio else in_unit)
        label = Cell(name, moved) if (moved := per(each)) else name
        rows.append((label, own_cell, *([estimate_cell(alone)] if has_alone else []), drawn))
    of_user = [f"{run.shown(run.result.user)} alone"] if has_alone else []
    return {
        "effects": rows,
        "curved": [each.column for each in found.coefficients if each.category == "curve 1"],
        "effect_caption": f"{what}s of {found.shown}, per standard deviation or category",
        "effect_headings": ("Column", f"{what}{unit and f', {unit}'}", *of_user, "Plot"),
        "effects_from": "errors" if has_errors else "folds" if has_interval else "",
    }
