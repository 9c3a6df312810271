"""The pages' charts as SVG with the page's colours, to suit light, dark and paper.

Drawn with matplotlib's object interface: nothing global is left behind.
"""

import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, isfinite, nan
from typing import Any, Literal

import matplotlib
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from erosion_common.rounds.records import HospitalRecord, RoundRecord, curve_of
from erosion_common.tasks.metric import Metric
from erosion_server.output.run_data import RunData
from erosion_server.output.words import printable, shortened, weight_text
from erosion_server.run.overview import Overview

# Stand-ins that the page's style sheet gives a value: `#fe0000` becomes var(--ink).
INK, FAINT, GRID = "#fe0000", "#fe0001", "#fe0002"
SERIES = tuple(f"#fe001{number}" for number in range(7))
DASHES = ("-", (0, (5, 1.6)), (0, (1.2, 1.4)), (0, (6, 1.5, 1.2, 1.5)))  # after seven colours

WIDTH, HEIGHT = 9.0, 3.3  # inches; the SVG scales with the page
BOTTOM, TOP = 0.52, 0.12  # margins in inches
LEFT, RIGHT = 0.62, 2.1  # at least; more where numbers and labels are long
FONT = 9.0  # points
LINE_HEIGHT = 0.165  # inches between two labels
LONGEST_NAME = 30
LONGEST_POWERS = (-9, 9)  # of ten; beyond, a power stands above the axis and not in its numbers
MOST_POINTS = 500  # a line; finer would not be seen and makes the file large
WIDE_RANGE = 40.0  # largest over smallest value from which a logarithmic axis is easier to read
ROW_HEIGHT, LEGEND_HEIGHT = 0.34, 0.2  # inches: a hospital's row, a row of the legend
LEGEND_TOP = 0.25  # inches above the legend
LEGEND_COLUMNS = 5
LETTER = 0.075  # inches
SHIFT = 0.4  # of a row, from the first arm's mark to the last one's
MARKERS = ("o", "s", "D", "^", "v", "P", "X")


@dataclass(frozen=True, slots=True)
class Line:
    """One labelled line."""

    name: str
    points: Sequence[tuple[int, float | None]]  # (round, value), ascending; None: a gap
    style: int  # which colour and dash pattern: the same for one hospital in every chart
    ending: str = ""  # said behind the name; "": the last value


@dataclass(frozen=True, slots=True)
class Chart:
    """What is drawn."""

    title: str  # for screen readers, and to tell the charts of a page apart
    lines: Sequence[Line]
    x_label: str
    y_label: str
    last_round: int
    written: Callable[[float], str] = "{:z.3f}".format  # the value behind a line's name
    from_zero: bool = False
    may_be_logarithmic: bool = False
    reference: tuple[str, float] | None = None  # a labelled horizontal line
    shaded_rounds: Sequence[int] = ()
    label_room: int = 0  # characters at least; charts with the same room line up


def draw(chart: Chart) -> Markup:
    """Return the chart as an `<svg>` element."""
    labels = [label.text for label in _labels(chart)]
    right = max(RIGHT, 0.5 + 0.068 * max([chart.label_room, *map(len, labels)]))
    plot_height = max(HEIGHT - BOTTOM - TOP, 1.4 * LINE_HEIGHT * len(labels))
    height = plot_height + BOTTOM + TOP
    with drawing(chart.title):
        figure = Figure(figsize=(WIDTH, height))
        axes = figure.add_axes((0, 0, 1, plot_height / height))
        _draw_lines(axes, chart)
        _set_scales(axes, chart)
        numbers = axes.yaxis.get_major_formatter().format_ticks(axes.get_yticks().tolist())
        left = LEFT + 0.1 * max(0, max(map(len, numbers), default=0) - 5)
        axes.set_position(
            (left / WIDTH, BOTTOM / height, 1 - (left + right) / WIDTH, plot_height / height)
        )
        _label_lines(axes, chart, gap=LINE_HEIGHT / plot_height)
        return as_svg(figure, chart.title)


@contextmanager
def drawing(title: str) -> Iterator[None]:
    """While a figure is made and written: text stays text, and the same figure the same bytes."""
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": title, "font.size": FONT}
    with matplotlib.rc_context(settings):
        yield


def as_svg(figure: Figure, title: str) -> Markup:
    """Return the figure as an `<svg>` element of the page; for use within `drawing`."""
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    return Markup(_for_page(buffer.getvalue(), title))


def _draw_lines(axes: Axes, chart: Chart) -> None:
    for first, last in _runs(chart.shaded_rounds):
        axes.axvspan(first - 0.5, last + 0.5, color=GRID, linewidth=0)
    if chart.reference is not None:
        axes.axhline(chart.reference[1], **_REFERENCE_LOOK)
    for line in chart.lines:
        points = thinned(line.points)
        values = [nan if y is None else y for _, y in points]
        axes.plot(
            [x for x, _ in points],
            values,
            marker="o",
            markersize=3.2,
            markevery=_isolated(values),
            clip_on=False,  # whole dots and full line width at the edges
            **_look(line.style),
        )


def _set_scales(axes: Axes, chart: Chart) -> None:
    axes.set_xlim(0, max(1, chart.last_round))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=10, steps=[1, 2, 5, 10]))
    values = [y for line in chart.lines for _, y in line.points if y is not None and y > 0]
    if chart.may_be_logarithmic and values and max(values) > WIDE_RANGE * min(values):
        axes.set_yscale("log", nonpositive="mask")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        y_label = f"{chart.y_label}, logarithmic"
    else:
        y_label = chart.y_label
        axes.ticklabel_format(axis="y", scilimits=LONGEST_POWERS, useOffset=False)
        if chart.from_zero:
            axes.set_ylim(bottom=0)
    axes.set_xlabel(chart.x_label, color=INK, parse_math=False)
    axes.set_ylabel(y_label, color=INK, parse_math=False)
    plain_axes(axes, grid="y")


def plain_axes(axes: Axes, grid: Literal["x", "y"]) -> None:
    """A base line and a faint grid, in the page's colours."""
    axes.grid(axis=grid, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", colors=INK, length=0, pad=5)
    for side in ("top", "left", "right"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)


@dataclass(frozen=True, slots=True)
class _Label:
    """What stands at the right edge for one line."""

    x: float  # where the line ends
    y: float
    since: int  # the round from which on y did not change
    text: str
    look: Mapping[str, Any]  # colour, dashes and width of the line


def _label_lines(axes: Axes, chart: Chart, gap: float) -> None:
    """Each line's name at the right edge, after a piece of the line and tied to its end."""
    # Lines that end at the same height are labelled in the order in which they came there.
    topmost_first = sorted(_labels(chart), key=lambda label: (-label.y, -label.since))
    labels = topmost_first[::-1]
    to_axes = axes.transData + axes.transAxes.inverted()
    ends = [to_axes.transform((label.x, label.y)) for label in labels]
    heights = spread([float(y) for _, y in ends], gap)
    crowded = len(labels) > len(SERIES) + 1
    for label, (x, y), height in zip(labels, ends, heights, strict=True):
        reaches_edge = x > 0.999
        if reaches_edge or not crowded:
            axes.plot(
                [float(x), 1.0, 1.012],
                [float(y), float(y), height],
                transform=axes.transAxes,
                clip_on=False,
                color=FAINT,
                linewidth=0.6,
                linestyle="-" if reaches_edge else (0, (1, 3)),
            )
        axes.plot(
            [1.015, 1.05],
            [height, height],
            transform=axes.transAxes,
            clip_on=False,
            **label.look,
        )
        axes.text(
            1.058,
            height,
            label.text,
            transform=axes.transAxes,
            va="center",
            color=INK,
            parse_math=False,
        )


def _labels(chart: Chart) -> Iterator[_Label]:
    if chart.reference is not None:
        name, value = chart.reference
        text = f"{name} {chart.written(value)}"
        yield _Label(chart.last_round, value, 0, text, _REFERENCE_LOOK)
    for line in chart.lines:
        known = [(x, y) for x, y in line.points if y is not None and isfinite(y)]
        if known:
            x, value = known[-1]
            since = next((x for x, y in reversed(known) if y != value), 0)
            ending = line.ending or chart.written(value)
            text = f"{shortened(printable(line.name), LONGEST_NAME)} {ending}"
            yield _Label(x, value, since, text, _look(line.style))


_REFERENCE_LOOK: Mapping[str, Any] = {"color": FAINT, "linestyle": (0, (2, 2)), "linewidth": 1.0}


def _look(style: int) -> Mapping[str, Any]:
    return {
        "color": SERIES[style % len(SERIES)],
        "linestyle": DASHES[style // len(SERIES) % len(DASHES)],
        "linewidth": 1.7,
    }


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Return the nearest heights within 0 to 1 that are `gap` apart, in the same order.

    Least squares by pooling adjacent violators.
    """
    if len(heights) < 2:
        return [min(1.0, max(0.0, height)) for height in heights]
    gap = min(gap, 1 / (len(heights) - 1))
    order = sorted(range(len(heights)), key=lambda index: heights[index])
    pools: list[tuple[float, int]] = []  # (mean of height - rank x gap, how many)
    for rank, index in enumerate(order):
        mean, count = heights[index] - rank * gap, 1
        while pools and pools[-1][0] > mean:
            previous, many = pools.pop()
            mean, count = (previous * many + mean * count) / (many + count), many + count
        pools.append((mean, count))
    bases = [mean for mean, count in pools for _ in range(count)]
    top = 1 - (len(heights) - 1) * gap
    placed = [0.0] * len(heights)
    for rank, index in enumerate(order):
        placed[index] = min(top, max(0.0, bases[rank])) + rank * gap
    return placed


def thinned(points: Sequence[tuple[int, float | None]]) -> list[tuple[int, float | None]]:
    """At most about MOST_POINTS of the points, evenly, the last one always among them."""
    step = ceil(len(points) / MOST_POINTS)
    return [*points[:-1:step], *points[-1:]] if step > 1 else list(points)


def _isolated(values: Sequence[float]) -> list[int]:
    """Return points without a neighbour: no line shows them, so they need a dot."""
    known = [False, *(isfinite(value) for value in values), False]
    return [
        index
        for index in range(len(values))
        if known[index + 1] and not known[index] and not known[index + 2]
    ]


def _runs(rounds: Sequence[int]) -> list[tuple[int, int]]:
    """First and last of every run of consecutive numbers."""
    ordered = sorted(rounds)
    breaks = [index + 1 for index, (a, b) in enumerate(pairwise(ordered)) if b > a + 1]
    starts, ends = [0, *breaks], [*breaks, len(ordered)]
    return [(ordered[a], ordered[b - 1]) for a, b in zip(starts, ends, strict=True) if b > a]


def _for_page(svg: str, title: str) -> str:
    """Without the file's own head, and with the page's colours, font and size."""
    names = {INK: "ink", FAINT: "faint", GRID: "grid"}
    names |= {colour: f"series-{number}" for number, colour in enumerate(SERIES)}
    svg = svg[svg.index("<svg") :]
    # The <style> there would hold for the whole page.
    svg = re.sub(r"<(metadata|defs)>\s*(<rdf|<style).*?</\1>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"#fe00[01]\d", lambda match: f"var(--{names[match[0]]})", svg)
    svg = re.sub(r"font-family: [^;]*; ", "", svg)
    label = "".join(c if c.isalnum() or c in " ,.-()" else " " for c in title)
    return re.sub(
        r'<svg (.*?)width="[\d.]+pt" height="[\d.]+pt"|<svg ',
        lambda match: f'<svg role="img" aria-label="{label}" {match[1] or ""}',
        svg,
        count=1,
    )


def metric_figure(run: RunData, metric: Metric) -> Markup:
    """Return one metric of the user's over the rounds, one line an arm, and the base rate's."""
    lines = [
        Line(arm, metric_points(run, arm, metric.name), style)
        for style, arm in enumerate(run.result.arms)
    ]
    called, other = run.result.task.baseline(metric)
    found = run.result.base_rate
    base_rate = None if found is None else found.get(other)
    chart = Chart(
        title=f"{metric.label} of {run.result.user} after each round, one line for each arm",
        lines=lines,
        x_label="rounds finished",
        y_label=f"{metric.label} ({metric.unit})",
        last_round=max(x for line in lines for x, _ in line.points),
        written=metric.text,
        from_zero=metric.from_zero,
        reference=None if base_rate is None else (called, base_rate),
    )
    return draw(chart)


def metric_points(run: RunData, arm: str, metric: str) -> list[tuple[int, float | None]]:
    """(rounds finished, value)."""
    ended = run.result.arms[arm]
    return [
        (number, None if metrics is None else metrics.get(metric))
        for number, metrics in curve_of(run.of(arm), ended.rounds, ended.metrics)
    ]


def weight_figure(run: RunData) -> Markup:
    """Return the weight of every other hospital after each round; "" where there is none."""
    return _peers_figure(
        run,
        _peer_lines(run, _weight_shown, _when_out),
        title=f"weight of each hospital after each round of {run.first_arm}",
        y_label=f"weight ({shortened(run.result.user, LONGEST_NAME)} = 1)"
        if run.own_counts_one
        else "weight (largest = 1)",
        reference=(run.result.user, 1.0) if run.own_counts_one else None,
    )


def _weight_shown(entry: HospitalRecord) -> float | None:
    """Return the weight in a round; None where its update was not part of it, unless it is out."""
    is_out = entry.outcome == "not_asked" and entry.weight_after == 0.0
    return entry.weight_after if entry.outcome == "accepted" or is_out else None


def _when_out(points: Sequence[tuple[int, float | None]]) -> str:
    """Return when the weight fell to 0 for good; "" where it did not."""
    known = [(number, weight) for number, weight in points if weight is not None]
    above = [index for index, (_, weight) in enumerate(known) if weight > 0.0]
    first = above[-1] + 1 if above else 0
    return f"out in round {known[first][0]}" if first < len(known) else ""


def distance_figure(run: RunData) -> Markup:
    """Return the chart of every peer's distance from the user; "" where none was measured."""
    return _peers_figure(
        run,
        _peer_lines(run, lambda entry: entry.distance if entry.outcome == "accepted" else None),
        title=f"distance of each hospital's update in each round of {run.first_arm}",
        y_label="distance (1 - cosine)"
        if run.distances_are_angles
        else "distance (length of own update = 1)",
        may_be_logarithmic=True,
    )


def _peer_lines(
    run: RunData,
    value: Callable[[HospitalRecord], float | None],
    ending: Callable[[Sequence[tuple[int, float | None]]], str] = lambda _points: "",
) -> list[Line]:
    """Return a line for each peer with any value in the first arm; `ending` is its last word."""
    records = run.of(run.first_arm)
    return [
        Line(name, points, style, ending(points))
        for style, name in enumerate(run.peers)
        if _any_known(points := _points(records, name, value))
    ]


def _peers_figure(
    run: RunData,
    lines: Sequence[Line],
    *,
    title: str,
    y_label: str,
    reference: tuple[str, float] | None = None,
    may_be_logarithmic: bool = False,
) -> Markup:
    """Return the lines over the first arm's rounds; "" where there are none."""
    if not lines:
        return Markup()
    records = run.of(run.first_arm)
    return draw(
        Chart(
            title=title,
            lines=lines,
            x_label="round",
            y_label=y_label,
            last_round=records[-1].round,
            written=weight_text,
            from_zero=True,
            may_be_logarithmic=may_be_logarithmic,
            reference=reference,
            label_room=max(len(name) for name in run.peers) + len(" out in round 10"),
            shaded_rounds=[record.round for record in records if record.outcome == "skipped"],
        )
    )


def _points(
    records: Iterable[RoundRecord], name: str, value: Callable[[HospitalRecord], float | None]
) -> list[tuple[int, float | None]]:
    entries = ((record.round, record.hospitals.get(name)) for record in records)
    return [(number, None if entry is None else value(entry)) for number, entry in entries]


def _any_known(points: Iterable[tuple[int, float | None]]) -> bool:
    return any(y is not None for _, y in points)


def loss_figure(overview: Overview) -> Markup:
    """Return one row for each hospital and one mark for each arm."""
    names = [shortened(printable(user), LONGEST_NAME) for user in overview.users]
    metric = overview.task.metric(overview.task.verdict_metric)
    title = f"{metric.label} of every arm for each hospital of {overview.study}"
    above = LEGEND_TOP + LEGEND_HEIGHT * ceil(len(overview.arms) / LEGEND_COLUMNS)
    height = BOTTOM + above + ROW_HEIGHT * len(names)
    left = 0.3 + LETTER * max(map(len, names))
    with drawing(title):
        figure = Figure(figsize=(WIDTH, height))
        axes = figure.add_axes(
            (
                left / WIDTH,
                BOTTOM / height,
                1 - (left + 0.25) / WIDTH,
                1 - (BOTTOM + above) / height,
            )
        )
        rows = range(len(names))
        for row, line in zip(rows, overview.users.values(), strict=True):
            found = [metrics[metric.name] for metrics in line.arms.values()]
            axes.plot([min(found), max(found)], [row, row], color=GRID, linewidth=3, zorder=1)
        for style, arm in enumerate(overview.arms):
            # Marks on top of each other would hide each other.
            shift = SHIFT * (style - (len(overview.arms) - 1) / 2) / len(overview.arms)
            axes.plot(
                [line.arms[arm][metric.name] for line in overview.users.values()],
                [row + shift for row in rows],
                marker=MARKERS[style // len(SERIES) % len(MARKERS)],
                markersize=7,
                linestyle="",
                color=SERIES[style % len(SERIES)],
                label=shortened(printable(arm), LONGEST_NAME),
                clip_on=False,
            )
        axes.set_yticks(rows, names, parse_math=False)
        axes.set_ylim(len(names) - 0.4, -0.6)  # the first hospital on top
        axes.set_xlabel(f"{metric.label} ({metric.unit}); less is better", color=INK)
        plain_axes(axes, grid="x")
        figure.legend(
            loc="upper left",
            ncols=LEGEND_COLUMNS,
            frameon=False,
            labelcolor=INK,
            handletextpad=0.2,
        )
        return as_svg(figure, title)
