"""The report's section on other hospitals: what they measured, as forest plots and a summary."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from markupsafe import Markup

from erosion_common.protocol.performance import Estimate
from erosion_common.rounds.validation import Validated
from erosion_server.output import charts
from erosion_server.output.charts import Plot
from erosion_server.output.figures import Drawing, estimate_cell, estimate_text
from erosion_server.output.pages import Cell, Row
from erosion_server.output.run_data import RunData
from erosion_server.output.words import printable, shortened, some
from erosion_server.run.heterogeneity import Pooled, Scale, pooled
from erosion_server.run.result import Result, wrong_way_sentence

MOST_ROWS = 40  # hospitals in a forest plot and the table; the CSV file has all
ROLES = {"external": "no part in training", "trained": "took part in training"}
FARTHEST = 3.0  # spans of the middle values, from which an axis does not follow an interval


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure that hospitals are compared by."""

    name: str  # of a metric, or an estimate of calibration
    label: str
    scale: Scale
    aim: float | None  # what a perfect or a guessing model has


def measures(result: Result) -> list[Measure]:
    """Return discrimination and calibration, as the task has them."""
    task = result.task
    found: list[Measure] = []
    if task.leak_metric:
        metric = task.metric(task.leak_metric)
        scale: Scale = "plain" if metric.by_chance is None else "logit"
        found.append(Measure(metric.name, metric.label, scale, metric.by_chance))
    found.append(Measure("calibration_slope", "calibration slope", "plain", 1.0))
    is_number = task.predicts == "number"
    large = "mean error, observed minus predicted" if is_number else "calibration in the large"
    found.append(Measure("calibration_in_the_large", large, "plain", 0.0))
    if not is_number:
        found.append(Measure("expected_over_observed", "expected/observed", "log", 1.0))
    return found


def figure_of(found: Validated, measure: Measure) -> Estimate | None:
    """Return one hospital's figure; None where it has none, or has one for each of many classes."""
    if found.metrics is None:
        return None
    if (value := found.metrics.get(measure.name)) is not None:
        ends = found.metrics.intervals.get(measure.name)
        return None if ends is None else Estimate(value=value, low=ends.low, high=ends.high)
    models, name = found.models, measure.name
    if len(models) != 1:
        return None
    return next((each for key, each in models[0].estimates.items() if key == name), None)


def summaries(result: Result) -> dict[str, Pooled]:
    """Return each measure over the external hospitals that have it; of survival at one horizon."""
    external = [found for found in result.validation.values() if found.role != "trained"]
    horizons = [found.models[0].horizon for found in external if found.models]
    common = max(horizons, key=horizons.count, default=None)
    summed: dict[str, Pooled] = {}
    for measure in measures(result):
        is_metric = measure.name == result.task.leak_metric
        alike = [f for f in external if is_metric or (f.models and f.models[0].horizon == common)]
        figures = [each for f in alike if (each := figure_of(f, measure)) is not None]
        if (found := pooled(figures, measure.scale)) is not None:
            summed[measure.name] = found
    return summed


def travel_sentence(result: Result) -> str:
    """Return in a sentence how well the model does elsewhere; "" where nobody measured it."""
    measured = {n: found for n, found in result.validation.items() if found.metrics is not None}
    external = [name for name, found in measured.items() if found.role != "trained"]
    if not measured:
        return ""
    if not external:
        return (
            f"{len(measured)} other hospital{'s' * (len(measured) > 1)} measured it, which took"
            " part in training: none of them is an external one."
        )
    first = measures(result)[0]
    said = (
        f"Measured at {len(external)} hospital{'s' * (len(external) > 1)} without part in training"
    )
    if len(external) == 1:
        return f"{said}: {first.label} {estimate_text(figure_of(measured[external[0]], first))}."
    if (found := summaries(result).get(first.name)) is None:
        return f"{said}."
    ends = ""
    if found.predicted is not None:
        low, high = (f"{end:z.2f}" for end in found.predicted)
        ends = f", at another one expected between {low} and {high}"
    of = f" of the {found.hospitals} that have it" * (found.hospitals < len(external))
    return f"{said}: {first.label} {estimate_text(found.mean)} on average{of}{ends}."


def turned_elsewhere(run: RunData) -> list[str]:
    """Warn of hospitals at which the model ranks patients the wrong way round."""
    first, *_ = measures(run.result)
    if first.aim is None or first.scale != "logit":
        return []
    turned = [
        run.shown(name)
        for name, found in run.result.validation.items()
        if (ranking := figure_of(found, first)) is not None and ranking.high < first.aim
    ]
    said = wrong_way_sentence(f"At {some(turned)} the model ranks patients")
    return [said] if turned else []


def validation_values(run: RunData) -> dict[str, Any]:
    """Return the section's table, figures and remarks; nothing where nobody was asked."""
    result, every = run.result, run.result.validation
    if not every:
        return {"travel": [], "travelled": [], "travel_files": []}
    found, summed = measures(result), summaries(result)
    order = sorted(
        every, key=lambda name: (every[name].metrics is None, [*ROLES].index(every[name].role))
    )
    rows: list[Row] = []
    for name in order[:MOST_ROWS]:
        each = every[name]
        told = "–" if each.metrics is None else f"about {each.metrics.num_patients}"
        horizon = run.horizon(each.models[0]) if each.models else ""
        patients = Cell(told, horizon and f"calibration at {horizon}")
        role = Cell(ROLES[each.role], each.why_not and f"not measured: {each.why_not}")
        figures = [estimate_cell(figure_of(each, measure)) for measure in found]
        rows.append((run.cell(name), role, patients, *figures))
    if summed:
        means = [estimate_cell(p.mean if (p := summed.get(m.name)) else None) for m in found]
        rows.append(("Mean of those without part", "random effects", "", *means))
        expected = [_expected(summed.get(m.name)) for m in found]
        rows.append(("Expected at another hospital", "95 % prediction interval", "", *expected))
    drawn = [*_forests(run, order, found, summed)]
    return {
        "travel": rows,
        "travel_headings": ("Hospital", "Its part", "Patients", *(m.label for m in found)),
        "travel_says": travel_sentence(result),
        "travel_more": max(0, len(order) - MOST_ROWS),
        "travel_arm": next(iter(every.values())).arm,
        "travel_spread": [
            f"{measure.label}: {100 * p.i_squared:.0f} % of the variance is between hospitals"
            f" (tau {p.tau:.2g}{' on the logit scale' * (p.scale == 'logit')})"
            for measure in found
            if (p := summed.get(measure.name)) is not None
        ],
        "travelled": drawn,
        "travel_files": [*drawn, _numbers(every, found, summed)],
    }


def _expected(found: Pooled | None) -> str:
    if found is None or found.predicted is None:
        return "–"
    low, high = (f"{end:z.2f}".replace("-", "\u2212") for end in found.predicted)
    return f"{low} to {high}"


def _forests(
    run: RunData, order: Sequence[str], found: Sequence[Measure], summed: Mapping[str, Pooled]
) -> Iterator[Drawing]:
    every = run.result.validation
    for measure in found:
        rows = [(n, e) for n in order if (e := figure_of(every[n], measure)) is not None]
        if not rows:
            continue
        shown, label = rows[:MOST_ROWS], ""
        known = summed.get(measure.name)
        last = ["mean, expected"] * (known is not None)
        means = [known.mean] if known else []
        at = {n: run.horizon(every[n].models[0]) if every[n].models else "" for n, _ in shown}
        is_timed = measure.name != run.result.task.leak_metric and len({*at.values()}) > 1
        ends = {n: f", by {time}" * is_timed for n, time in at.items()}
        called = [
            shortened(printable(run.shown(n)), charts.LONGEST_NAME - len(end)) + end
            for n, end in ends.items()
        ]
        span = _span([*(each for _, each in shown), *means], measure.aim)
        plot = Plot.of_rows([*called, *last], span, measure.label)
        if measure.aim is not None:
            what = "guessing" if measure.scale == "logit" else "perfect"
            plot.reference(what, [(measure.aim, end) for end in plot.y])
        roles = [every[name].role for name, _ in shown]
        for row, (name, each) in enumerate(reversed(shown), start=len(last)):
            plot.interval(row, called[-1 - row + len(last)], each, [*ROLES].index(every[name].role))
        if known is not None:
            low, high = known.predicted or (known.mean.low, known.mean.high)
            expected = Estimate(value=known.mean.value, low=low, high=high)
            plot.interval(0, last[0], expected, 3, known.mean)
            label = (
                f"mean {estimate_text(known.mean)} of {known.hospitals} without part in training"
            )
        for style, (role, words) in enumerate(ROLES.items()):
            if role in roles:
                plot.mark(words, style)
        title = f"{measure.label[0].upper()}{measure.label[1:]} at other hospitals"
        said = "; ".join(f"{run.shown(n)} {estimate_text(e)}" for n, e in shown[:12])
        columns = ("hospital", "part", "value", "low", "high")
        lines = [(n, every[n].role, e.value, e.low, e.high) for n, e in rows]
        name = f"forest-{measure.name.replace('_', '-')}"
        yield Drawing(name, title, plot.svg(title, said), columns, lines, label)


def _span(found: Sequence[Estimate], aim: float | None) -> tuple[float, float]:
    """Return an axis with all values, and ordinary intervals; a far one runs off it."""
    values = [each.value for each in found] + ([] if aim is None else [aim])
    ends = [end for each in found for end in (each.low, each.high)]
    low, high = min(values), max(values)
    room = FARTHEST * max(high - low, 0.1, median(each.high - each.low for each in found))
    return max(min(*ends, low), low - room), min(max(*ends, high), high + room)


def _numbers(
    every: Mapping[str, Validated], found: Sequence[Measure], summed: Mapping[str, Pooled]
) -> Drawing:
    ends = ("", "_low", "_high")
    at = {name: each.models[0].horizon if each.models else None for name, each in every.items()}
    is_timed = any(horizon is not None for horizon in at.values())
    columns = ("hospital", "part", "patients", *["calibration_at"] * is_timed)
    columns += tuple(f"{m.name}{end}" for m in found for end in ends)

    def cells(estimates: Sequence[Estimate | None]) -> list[object]:
        return [
            x for e in estimates for x in (("",) * 3 if e is None else (e.value, e.low, e.high))
        ]

    lines: list[Sequence[object]] = [
        (
            name,
            each.role,
            "" if each.metrics is None else each.metrics.num_patients,
            *[at[name]] * is_timed,
            *cells([figure_of(each, m) for m in found]),
        )
        for name, each in every.items()
    ]
    if summed:
        means = [p.mean if (p := summed.get(m.name)) else None for m in found]
        lines.append(("(mean)", "external", "", *[""] * is_timed, *cells(means)))
    return Drawing("validation", "Other hospitals", Markup(), columns, lines)
