"""A run's figures of performance: charts for the page, and each as an SVG and a CSV file."""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from markupsafe import Markup

from erosion_common.protocol.messages import QUANTILES
from erosion_common.protocol.performance import (
    Curve,
    CurveName,
    Dependence,
    Estimate,
    EstimateName,
    ModelFigures,
    Performance,
)
from erosion_common.support.files import write_atomically
from erosion_common.support.text import harmless, significant
from erosion_server.output.charts import Plot, percent, short, standalone
from erosion_server.output.pages import Cell

FOLDER = "figures"
MOST_SHOWN = 3  # models side by side
MOST_DIGITS = 12  # decimals
DIVERGED = 1e6  # an odds ratio, for instance
MOST_NAME = 60  # characters of a file's name
FLOOR = -0.05  # of net benefit on the page: below, "treat all" would flatten everything else
BAND = "The band is a 95 % interval."
ROC_AXES = ("false alarms, %", "found, %")
PRECISION_AXES = ("found, %", "right among alerts, %")
FOUND = ("found", "found_low", "found_high")
SHARES = (
    "sensitivity",
    "specificity",
    "positive_predictive_value",
    "negative_predictive_value",
    "net_benefit",
)
BY_RISK: Mapping[CurveName, str] = {
    "free_of_event_low": "lowest third of risks",
    "free_of_event_middle": "middle third",
    "free_of_event_high": "highest third",
}


@dataclass(frozen=True, slots=True)
class Drawing:
    """One figure."""

    name: str  # of its files
    caption: str
    svg: Markup  # "": it is a table alone
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    label: str = ""  # in a few words, for people: the most telling number

    def as_csv(self) -> str:
        """Return its numbers."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(map(harmless, self.columns))
        writer.writerows(
            [harmless(cell) if isinstance(cell, str) else cell for cell in row] for row in self.rows
        )
        return text.getvalue()


def write_figures(folder: Path, drawings: Iterable[Drawing], name: str = FOLDER) -> None:
    """Write every figure's two files into the run's folder; those of an earlier report go."""
    place = folder / name
    drawn = list(drawings)
    if not drawn and not place.exists():
        return
    place.mkdir(exist_ok=True)
    for old in (*place.glob("*.svg"), *place.glob("*.csv")):
        old.unlink()
    used: set[str] = set()
    for drawing in drawn:
        name, number = drawing.name, 1
        while name in used:  # of columns with other alphabets, or long ones alike
            number += 1
            name = f"{drawing.name}-{number}"
        used.add(name)
        if drawing.svg:
            write_atomically(place / f"{name}.svg", standalone(drawing.svg))
        write_atomically(place / f"{name}.csv", drawing.as_csv())


def file_name(*words: str) -> str:
    """Return a name for a figure's files."""
    return re.sub(r"[^a-z0-9]+", "-", "-".join(words).lower()).strip("-")[:MOST_NAME]


def estimate_cell(found: Estimate | None, digits: int = 2) -> Cell:
    """Return a figure, with its interval below it."""
    if found is None:
        return Cell("–")
    ends = (found.value, found.low, found.high)
    form = f"z.{_digits_apart(found, digits)}f" if max(map(abs, ends)) < DIVERGED else "z.1e"
    value, low, high = (format(each, form).replace("-", "\u2212") for each in ends)
    return Cell(value, f"{low} to {high}")


def _digits_apart(found: Estimate, digits: int) -> int:
    """Return `digits`, or more where the ends of the interval would look alike."""
    known = range(digits, MOST_DIGITS)
    apart = next((n for n in known if round(found.low, n) != round(found.high, n)), digits)
    return apart + (apart > digits)


def estimate_text(found: Estimate | None) -> str:
    """Return a figure with its interval."""
    cell = estimate_cell(found)
    return f"{cell.value} ({cell.remark})" if cell.remark else cell.value


def named(model: ModelFigures, models: Sequence[ModelFigures]) -> str:
    """Return what a model's figure is called: by its class, where there are several."""
    return model.event if len({each.event for each in models}) > 1 else model.model


def drawable(model: ModelFigures) -> ModelFigures:
    """Return it without what no chart can show: a site may send anything within its bounds."""
    curves = {name: curve for name, curve in model.curves.items() if curve.x}
    if (benefit := curves.get("net_benefit")) and not all(0 <= x < 1 for x in benefit.x):
        del curves["net_benefit"]
    return model.model_copy(update={"curves": curves})


def discrimination(models: Sequence[ModelFigures]) -> Iterator[Drawing]:
    """Yield ROC and precision-recall curves."""
    kinds: tuple[tuple[CurveName, str, EstimateName, str, str, str, Sequence[str]], ...] = (
        ("roc", "ROC curve", "auroc", "AUROC", *ROC_AXES, ("false_alarms", *FOUND)),
        (
            "precision_recall",
            "precision-recall curve",
            "average_precision",
            "average precision",
            *PRECISION_AXES,
            ("found", "right_among_alerts", "low", "high"),
        ),
    )
    for kind, title, key, measure, x_label, y_label, columns in kinds:
        for style, model in enumerate(models):
            if (curve := model.curves.get(kind)) is None:
                continue
            called = named(model, models)
            plot = Plot((0, 1), (0, 1), x_label, y_label, percent, percent, height=300)
            if kind == "roc":
                plot.reference("guessing", [(0, 0), (1, 1)])
            elif model.prevalence is not None:
                plot.reference("guessing", [(0, model.prevalence), (1, model.prevalence)])
            _with_band(plot, curve, called, style)
            label = f"{measure} {estimate_text(model.estimates.get(key))}"
            svg = plot.svg(f"{title} of {called}", f"{label}. {BAND}")
            name = file_name(kind.replace("_", "-"), called)
            yield Drawing(name, called, svg, columns, _rows(curve), label)


def calibration(models: Sequence[ModelFigures], unit: str = "") -> Iterator[Drawing]:
    """Yield observed against predicted, smoothed, with groups of patients as dots."""
    ends: list[float] = []  # of all, so that charts side by side can be compared
    for model in models:
        if (curve := model.curves.get("calibration")) is not None:
            ends += (*curve.x, *curve.low, *curve.high)
        for each in model.groups:
            ends += (each.predicted, each.observed.low, each.observed.high)
    for style, model in enumerate(models):
        curve, groups = model.curves.get("calibration"), model.groups
        if curve is None and not groups:
            continue
        called, is_number = named(model, models), not model.event
        span = (min(ends), max(ends)) if is_number else (0.0, _round_up(max(ends)))
        form = short if is_number else percent
        what = f"predicted{f', {unit}' if unit else ''}" if is_number else "predicted risk, %"
        seen = "observed" if is_number else "observed, %"
        plot = Plot(span, span, what, seen, form, form, height=300)
        plot.reference("perfect", [(end, end) for end in span])
        rows: list[Sequence[object]] = []
        if curve is not None:
            _with_band(plot, curve, called, style)
            rows += [("smoothed", *row, "") for row in _rows(curve)]
        for each in groups:
            plot.dot(each.predicted, each.observed, style)
            rows.append(("group", each.predicted, *_cells(each.observed), each.num_patients))
        said = _calibration_words(model, unit)
        svg = plot.svg(f"Calibration of {called}", f"{said}. {BAND}")
        columns = ("kind", "predicted", "observed", "low", "high", "patients")
        yield Drawing(file_name("calibration", called), called, svg, columns, rows, said)


def _calibration_words(model: ModelFigures, unit: str) -> str:
    slope = model.estimates.get("calibration_slope")
    large = model.estimates.get("calibration_in_the_large")
    parts = [f"slope {estimate_text(slope)}"]
    if "expected_over_observed" in model.estimates:
        ratio = estimate_text(model.estimates["expected_over_observed"])
        parts += [f"expected/observed {ratio}", f"in the large {estimate_text(large)}"]
    elif large is not None:
        parts.append(f"observed minus predicted {estimate_text(large)} {unit}".strip())
    return ", ".join(parts)


def decisions(models: Sequence[ModelFigures]) -> Drawing | None:
    """Return net benefit by threshold, against treating everybody and nobody."""
    drawn = _with_curve(models, "net_benefit")
    if not drawn:
        return None
    first, lead = drawn[0]
    several = len({model.event for model, _ in drawn}) > 1
    everybody = {
        f"everybody: {model.event}" if several else "everybody": _on_everybody(model, curve)
        for model, curve in (drawn if several else drawn[:1])
    }
    ends = [*(points[0][1] for points in everybody.values()), 0.0]
    top = _round_up(max([*ends, *(y for _, curve in drawn for y in curve.high)]))
    span, x_label = (0, _last(drawn)), "threshold: act from this risk on, %"
    plot = Plot(span, (FLOOR, top), x_label, "net benefit", x_form=percent, height=270)
    plot.band(lead.x, *_within(lead, FLOOR, top), 0)
    for called, points in everybody.items():
        plot.reference(f"act on {called}", [(t, y) for t, y in points if y >= FLOOR])
    plot.reference("act on nobody", [(t, 0.0) for t in (lead.x[0], lead.x[-1])])
    rows: list[Sequence[object]] = [
        (called, t, y, "", "") for called, points in everybody.items() for t, y in points
    ]
    for style, (model, curve) in enumerate(drawn):
        called = named(model, models)
        shown = [(t, y) for t, y in zip(curve.x, curve.y, strict=True) if y >= FLOOR]
        plot.line(called, shown, style)
        rows += [(called, *row) for row in _rows(curve)]
    said = f"The band is the 95 % interval of {named(first, models)}."
    svg = plot.svg("Decision curve", said)
    columns = ("model", "threshold", "net_benefit", "low", "high")
    return Drawing("net-benefit", "Net benefit by threshold", svg, columns, rows, said)


def _on_everybody(model: ModelFigures, curve: Curve) -> list[tuple[float, float]]:
    share = model.prevalence or 0.0
    return [(t, share - (1 - share) * t / (1 - t)) for t in curve.x]


def useful_range(model: ModelFigures) -> tuple[float, float] | None:
    """Return the longest stretch of thresholds with a band above acting on all and on nobody."""
    curve, share = model.curves.get("net_benefit"), model.prevalence
    if curve is None or share is None:
        return None
    best: list[float] = []
    stretch: list[float] = []
    for threshold, low in zip(curve.x, curve.low, strict=True):
        everybody = share - (1 - share) * threshold / (1 - threshold)
        stretch = [*stretch, threshold] if low > max(0.0, everybody) else []
        best = max(best, stretch, key=len)
    return (best[0], best[-1]) if len(best) > 1 else None


def over_time(models: Sequence[ModelFigures], unit: str) -> Iterator[Drawing]:
    """Yield the AUROC by time of every model, and the first one's patients by risk."""
    time = f"time{f', {unit}' if unit else ''}"
    if drawn := _with_curve(models, "auroc_by_time"):
        every = [value for _, curve in drawn for value in (*curve.low, *curve.high)]
        last, low = _last(drawn), min(0.5, *every)
        plot = Plot((0, last), (low, 1), time, "AUROC of the event by then", height=270)
        plot.reference("guessing", [(0, 0.5), (last, 0.5)])
        rows: list[Sequence[object]] = []
        for style, (model, curve) in enumerate(drawn):
            if style == 0:
                plot.band(curve.x, curve.low, curve.high, style)
            plot.line(model.model, list(zip(curve.x, curve.y, strict=True)), style)
            rows += [(model.model, *row) for row in _rows(curve)]
        svg = plot.svg("AUROC by time", f"The band is the 95 % interval of {drawn[0][0].model}.")
        columns = ("model", "time", "auroc", "low", "high")
        yield Drawing("auroc-by-time", "How well risks rank patients, by time", svg, columns, rows)
    for model in models[:1]:
        parts = [
            (words, model.curves[name]) for name, words in BY_RISK.items() if name in model.curves
        ]
        if len(parts) < 2:
            continue
        plot = Plot(
            (0, _last(parts)), (0, 1), time, "without the event, %", y_form=percent, height=270
        )
        rows = []
        for style, (words, curve) in enumerate(parts):
            _with_band(plot, curve, words, style)
            rows += [(words, *row) for row in _rows(curve)]
        title = f"Patients without the event by risk, as {model.model} predicts it"
        svg = plot.svg(title, "Kaplan-Meier estimates with 95 % intervals.")
        columns = ("patients", "time", "without_event", "low", "high")
        yield Drawing("kaplan-meier", "Kaplan-Meier, by predicted risk", svg, columns, rows)


def residuals(models: Sequence[ModelFigures]) -> Drawing | None:
    """Return the spread of errors by fifth of a number's predictions, of the first model."""
    found = [group for model in models[:1] for group in model.groups if {*group.errors} - {None}]
    if not found:
        return None
    columns = ("predicted", *(f"error_{level:.0%}" for level in QUANTILES), "patients")
    rows = [
        (g.predicted, *("" if each is None else each for each in g.errors), g.num_patients)
        for g in found
    ]
    return Drawing("residuals", "Errors by predicted value", Markup(), columns, rows)


def dependences(
    found: Sequence[Dependence], outcome: str, units: Mapping[str, str], *, is_share: bool
) -> Iterator[Drawing]:
    """Yield how the mean prediction changes with each column."""
    every = [value for each in found for value in each.y]
    if not every:
        return
    low, high = (0.0, _round_up(max(every))) if is_share else (min(every), max(every))
    form = percent if is_share else partial(significant, digits=4)
    for each in found:
        name = file_name("dependence", each.column)
        unit = units.get(each.column, "")
        label = f"{each.column}, {unit}" if unit else each.column
        if each.x:
            plot = Plot((each.x[0], each.x[-1]), (low, high), label, outcome, y_form=form)
            plot.line("", list(zip(each.x, each.y, strict=True)), 0)
            rows: list[Sequence[object]] = list(zip(each.x, each.y, strict=True))
        else:
            places = len(each.categories)
            plot = Plot((0, places), (low, high), label, outcome, lambda _: "", form)
            plot.bars(range(places + 1), each.y, 0)
            for number, category in enumerate(each.categories[:8]):
                plot.tick(number + 0.5, category, 300 / places)
            rows = list(zip(each.categories, each.y, strict=True))
        title = f"Mean prediction by {each.column}"
        said = "; ".join(f"{a}: {form(b)}" for a, b in rows[:12])  # type: ignore[arg-type]
        yield Drawing(name, each.column, plot.svg(title, said), (each.column, "mean"), rows)


def tables(found: Performance) -> Iterator[Drawing]:
    """Yield what the page shows as tables, for their files."""
    thresholds = [
        ((model.model, model.event, row.threshold, row.alerts), row)
        for model in found.models
        for row in model.thresholds
    ]
    groups = [((each.column, each.group, each.num_patients), each) for each in found.subgroups]
    columns = [((each.column,), each) for each in found.importance]
    effects = [((each.column, each.category, each.value), each) for each in found.coefficients]
    kinds: tuple[tuple[str, Sequence[str], Sequence[str], Sequence[Any]], ...] = (
        ("thresholds", ("model", "event", "threshold", "alerts"), SHARES, thresholds),
        (
            "subgroups",
            ("column", "group", "num_patients"),
            ("discrimination", "gap", "calibration"),
            groups,
        ),
        ("importance", ("column",), ("loss",), columns),
        ("coefficients", ("column", "category", "value"), ("refits", "pooled", "alone"), effects),
    )
    for name, keys, estimates, drawn in kinds:
        headings = [f"{each}{end}" for each in estimates for end in ("", "_low", "_high")]
        rows = [
            (
                *("" if value is None else value for value in values),
                *(cell for each in estimates for cell in _cells(getattr(row, each))),
            )
            for values, row in drawn
        ]
        if rows:
            yield Drawing(name, "", Markup(), (*keys, *headings), rows)


def _with_curve(
    models: Sequence[ModelFigures], name: CurveName
) -> list[tuple[ModelFigures, Curve]]:
    return [(model, model.curves[name]) for model in models if name in model.curves]


def _last(drawn: Sequence[tuple[object, Curve]]) -> float:
    return max(x for _, curve in drawn for x in curve.x)


def _cells(found: Estimate | None) -> tuple[object, ...]:
    return ("", "", "") if found is None else (found.value, found.low, found.high)


def _with_band(plot: Plot, curve: Curve, name: str, style: int) -> None:
    plot.band(curve.x, *_within(curve, *plot.y), style)
    plot.line(name, list(zip(curve.x, curve.y, strict=True)), style)


def _within(curve: Curve, low: float, high: float) -> tuple[list[float], list[float]]:
    return (
        [min(high, max(low, each)) for each in curve.low],
        [min(high, max(low, each)) for each in curve.high],
    )


def _rows(curve: Curve) -> list[tuple[float, ...]]:
    return list(zip(curve.x, curve.y, curve.low, curve.high, strict=True))


def _round_up(share: float) -> float:
    steps = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8)
    return next((step for step in steps if share <= step), 1.0)
