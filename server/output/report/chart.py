"""A line chart as SVG with the page's colours, to suit light, dark and paper.

Drawn with matplotlib's object interface: nothing global is left behind.
"""

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, isfinite, nan
from typing import Any, Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from erosion.server.output.plain_text import printable, shortened

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


def draw(chart: Chart) -> str:
    """The chart as an `<svg>` element."""
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


def as_svg(figure: Figure, title: str) -> str:
    """The figure as an `<svg>` element of the page; for use within `drawing`."""
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    return _for_page(buffer.getvalue(), title)


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
    """The nearest heights within 0 to 1 that are `gap` apart, in the same order.

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
    """Points without a neighbour: no line shows them, so they need a dot."""
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
