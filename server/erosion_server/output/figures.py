"""A run's figures of performance: charts for the page, and each as an SVG and a CSV file."""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from erosion_common.protocol.messages import QUANTILES
from erosion_common.protocol.performance import (
    Curve,
    CurveName,
    Dependence,
    Estimate,
    ModelFigures,
    Performance,
)
from erosion_common.support.files import write_atomically
from erosion_common.support.text import harmless
from erosion_server.output.charts import Plot, Point, percent, short, standalone

FOLDER = "figures"
MOST_SHOWN = 3  # models side by side
MOST_NAME = 60  # characters of a file's name
FLOOR = -0.05  # of net benefit on the page: below, "treat all" would flatten everything else
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
    for drawing in drawn:
        if drawing.svg:
            write_atomically(place / f"{drawing.name}.svg", standalone(drawing.svg))
        write_atomically(place / f"{drawing.name}.csv", drawing.as_csv())


def file_name(*words: str) -> str:
    """Return a name for a figure's files."""
    return re.sub(r"[^a-z0-9]+", "-", "-".join(words).lower()).strip("-")[:MOST_NAME]


def estimate_text(found: Estimate | None, digits: int = 2) -> str:
    """Return a figure with its interval."""
    if found is None:
        return "–"
    value, low, high = (_number(each, digits) for each in (found.value, found.low, found.high))
    return f"{value} ({low} to {high})"


def _number(value: float, digits: int) -> str:
    return f"{value:z.{digits}f}".replace("-", "\u2212")


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
    for style, model in enumerate(models):
        if (curve := model.curves.get("roc")) is None:
            continue
        called = named(model, models)
        area = model.estimates.get("auroc")
        plot = Plot((0, 1), (0, 1), "false alarms, %", "found, %", percent, percent, height=300)
        plot.reference("guessing", [(0, 0), (1, 1)])
        _with_band(plot, curve, called, style)
        label = f"AUROC {estimate_text(area)}"
        svg = plot.svg(f"ROC curve of {called}", f"{label}. The band is a 95 % interval.")
        columns = ("false_alarms", "found", "found_low", "found_high")
        yield Drawing(file_name("roc", called), called, svg, columns, _rows(curve), label)
    for style, model in enumerate(models):
        if (curve := model.curves.get("precision_recall")) is None:
            continue
        called = named(model, models)
        precision = model.estimates.get("average_precision")
        plot = Plot(
            (0, 1), (0, 1), "found, %", "right among alerts, %", percent, percent, height=300
        )
        if model.prevalence is not None:
            plot.reference("guessing", [(0, model.prevalence), (1, model.prevalence)])
        _with_band(plot, curve, called, style)
        label = f"average precision {estimate_text(precision)}"
        svg = plot.svg(
            f"precision-recall curve of {called}", f"{label}. The band is a 95 % interval."
        )
        columns = ("found", "right_among_alerts", "low", "high")
        name = file_name("precision-recall", called)
        yield Drawing(name, called, svg, columns, _rows(curve), label)


def calibration(models: Sequence[ModelFigures], unit: str = "") -> Iterator[Drawing]:
    """Yield observed against predicted, smoothed, with groups of patients as dots."""
    for style, model in enumerate(models):
        curve, groups = model.curves.get("calibration"), model.groups
        if curve is None and not groups:
            continue
        called, is_number = named(model, models), not model.event
        ends = [value for each in (curve,) if each for value in (*each.x, *each.low, *each.high)]
        ends += [value for each in groups for value in (each.predicted, each.observed.value)]
        span = (min(ends), max(ends)) if is_number else (0.0, _round_up(max(ends)))
        form = short if is_number else percent
        what = f"predicted{f', {unit}' if unit else ''}" if is_number else "predicted risk, %"
        seen = "observed" if is_number else "observed, %"
        plot = Plot(span, span, what, seen, form, form, height=300)
        plot.reference("perfect", [(span[0], span[0]), (span[1], span[1])])
        if curve is not None:
            _with_band(plot, curve, called, style)
        plot.dots(
            [each.predicted for each in groups],
            [each.observed.value for each in groups],
            [(each.observed.low, each.observed.high) for each in groups],
            style,
        )
        said = _calibration_words(model)
        svg = plot.svg(f"Calibration of {called}", f"{said}. The band is a 95 % interval.")
        columns = ("kind", "predicted", "observed", "low", "high", "patients")
        rows = [("smoothed", *row, "") for row in (_rows(curve) if curve else [])]
        rows += [
            (
                "group",
                g.predicted,
                g.observed.value,
                g.observed.low,
                g.observed.high,
                g.num_patients,
            )
            for g in groups
        ]
        yield Drawing(file_name("calibration", called), called, svg, columns, rows, said)


def _calibration_words(model: ModelFigures) -> str:
    slope = model.estimates.get("calibration_slope")
    large = model.estimates.get("calibration_in_the_large")
    parts = [f"slope {estimate_text(slope)}"]
    if "expected_over_observed" in model.estimates:
        ratio = estimate_text(model.estimates["expected_over_observed"])
        parts += [f"expected/observed {ratio}", f"in the large {estimate_text(large)}"]
    elif large is not None:
        parts.append(f"mean error {estimate_text(large)}")
    return ", ".join(parts)


def decisions(models: Sequence[ModelFigures]) -> Drawing | None:
    """Return net benefit by threshold, against treating everybody and nobody."""
    drawn = [
        (model, model.curves["net_benefit"]) for model in models if "net_benefit" in model.curves
    ]
    if not drawn:
        return None
    first, lead = drawn[0]
    share = first.prevalence or 0.0
    thresholds = list(lead.x)
    everybody: list[Point] = [(t, share - (1 - share) * t / (1 - t)) for t in thresholds]
    top = _round_up(max([share, *(y for _, curve in drawn for y in curve.high)]))
    plot = Plot(
        (0, max(x for _, curve in drawn for x in curve.x)),
        (FLOOR, top),
        "threshold: act from this risk on, %",
        "net benefit",
        x_form=percent,
        height=270,
    )
    plot.band(lead.x, *_within(lead, FLOOR, top), 0)
    plot.reference(
        "act on everybody", [(t, y) for t, y in everybody if y is not None and y >= FLOOR]
    )
    plot.reference("act on nobody", [(t, 0.0) for t in (thresholds[0], thresholds[-1])])
    rows: list[Sequence[object]] = [("everybody", t, y, "", "") for t, y in everybody]
    for style, (model, curve) in enumerate(drawn):
        called = named(model, models)
        shown = [(t, y) for t, y in zip(curve.x, curve.y, strict=True) if y >= FLOOR]
        plot.line(called, shown, style)
        rows += [(called, *row) for row in _rows(curve)]
    said = f"The band is the 95 % interval of {named(first, models)}."
    svg = plot.svg("Decision curve", said)
    columns = ("model", "threshold", "net_benefit", "low", "high")
    return Drawing("net-benefit", "Net benefit by threshold", svg, columns, rows, said)


def useful_range(model: ModelFigures) -> tuple[float, float] | None:
    """Return the thresholds where acting on the model is clearly better than on all or nobody.

    Its band has to clear both, in one stretch; None: nowhere.
    """
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
    drawn = [
        (model, model.curves["auroc_by_time"])
        for model in models
        if "auroc_by_time" in model.curves
    ]
    if drawn:
        every = [value for _, curve in drawn for value in (*curve.low, *curve.high)]
        last = max(x for _, curve in drawn for x in curve.x)
        plot = Plot(
            (0, last), (min(0.5, *every), 1), time, "AUROC of the event by then", height=270
        )
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
        last = max(x for _, curve in parts for x in curve.x)
        plot = Plot((0, last), (0, 1), time, "without the event, %", y_form=percent, height=270)
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
    found = [group for model in models[:1] for group in model.groups if group.errors]
    if not found:
        return None
    columns = ("predicted", *(f"error_{level:.0%}" for level in QUANTILES), "patients")
    rows = [
        (g.predicted, *("" if each is None else each for each in g.errors), g.num_patients)
        for g in found
    ]
    return Drawing("residuals", "Errors by predicted value", Markup(), columns, rows)


def dependences(found: Sequence[Dependence], outcome: str, *, is_share: bool) -> Iterator[Drawing]:
    """Yield how the mean prediction changes with each column."""
    every = [value for each in found for value in each.y]
    if not every:
        return
    low, high = (0.0, _round_up(max(every))) if is_share else (min(every), max(every))
    form = percent if is_share else "{:.4g}".format
    for each in found:
        name = file_name("dependence", each.column)
        if each.x:
            plot = Plot((each.x[0], each.x[-1]), (low, high), each.column, outcome, y_form=form)
            plot.line("", list(zip(each.x, each.y, strict=True)), 0)
            rows: list[Sequence[object]] = list(zip(each.x, each.y, strict=True))
        else:
            places = len(each.categories)
            plot = Plot((0, places), (low, high), each.column, outcome, lambda _: "", form)
            plot.bars(range(places + 1), each.y, 0)
            for number, category in enumerate(each.categories[:8]):
                plot.tick(number + 0.5, category, 300 / places)
            rows = list(zip(each.categories, each.y, strict=True))
        title = f"Mean prediction by {each.column}"
        said = "; ".join(f"{a}: {form(b)}" for a, b in rows[:12])  # type: ignore[arg-type]
        yield Drawing(name, each.column, plot.svg(title, said), (each.column, "mean"), rows)


def tables(found: Performance) -> Iterator[Drawing]:
    """Yield what the page shows as tables, for their files."""
    names = (
        "sensitivity",
        "specificity",
        "positive_predictive_value",
        "negative_predictive_value",
        "net_benefit",
    )
    rows: list[Sequence[object]] = []
    for model in found.models:
        for row in model.thresholds:
            each = [_cells(getattr(row, name)) for name in names]
            alerts = "" if row.alerts is None else row.alerts
            rows.append((model.model, model.event, row.threshold, alerts, *sum(each, ())))
    if rows:
        headings = [f"{name}{end}" for name in names for end in ("", "_low", "_high")]
        columns = ("model", "event", "threshold", "alerts", *headings)
        yield Drawing("thresholds", "", Markup(), columns, rows)
    for name, drawn, keys in (
        ("subgroups", found.subgroups, ("column", "group", "num_patients")),
        ("importance", found.importance, ("column",)),
        ("coefficients", found.coefficients, ("column", "category", "value")),
    ):
        of = {
            "subgroups": ("discrimination", "gap", "calibration"),
            "importance": ("loss",),
            "coefficients": ("refits", "pooled", "alone"),
        }[name]
        if drawn:
            headings = [f"{each}{end}" for each in of for end in ("", "_low", "_high")]
            rows = [
                (
                    *("" if getattr(row, key) is None else getattr(row, key) for key in keys),
                    *sum((_cells(getattr(row, each)) for each in of), ()),
                )
                for row in drawn
            ]
            yield Drawing(name, "", Markup(), (*keys, *headings), rows)


def _cells(found: Estimate | None) -> tuple[object, ...]:
    return ("", "", "") if found is None else (found.value, found.low, found.high)


def _with_band(plot: Plot, curve: Curve, name: str, style: int) -> None:
    plot.band(curve.x, *_within(curve, *plot.y), style)
    plot.line(name, list(zip(curve.x, curve.y, strict=True)), style)


def _within(curve: Curve, low: float, high: float) -> tuple[list[float], list[float]]:
    """Return the band, cut at the plot's ends."""
    return (
        [min(high, max(low, each)) for each in curve.low],
        [min(high, max(low, each)) for each in curve.high],
    )


def _rows(curve: Curve) -> list[tuple[float, ...]]:
    return list(zip(curve.x, curve.y, curve.low, curve.high, strict=True))


def _round_up(share: float) -> float:
    """Return an end of an axis of shares."""
    steps = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8)
    return next((step for step in steps if share <= step), 1.0)
