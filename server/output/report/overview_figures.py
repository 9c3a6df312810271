"""The overview's picture: every hospital's loss by each arm."""

from math import ceil

from matplotlib.figure import Figure

from erosion.server.output.plain_text import printable, shortened
from erosion.server.output.report.chart import (
    GRID,
    INK,
    LONGEST_NAME,
    SERIES,
    as_svg,
    drawing,
    plain_axes,
)
from erosion.server.run.overview import Overview

WIDTH = 9.0  # inches; the SVG scales with the page
ROW_HEIGHT, LEGEND_HEIGHT = 0.34, 0.2  # inches: a hospital's row, a row of the legend
BOTTOM, TOP = 0.52, 0.25  # inches: the axis below, and what is left beside the legend above
LEGEND_COLUMNS = 5
LETTER = 0.075  # inches
SHIFT = 0.4  # of a row, from the first arm's mark to the last one's
MARKERS = ("o", "s", "D", "^", "v", "P", "X")


def loss_figure(overview: Overview) -> str:
    """One row for each hospital and one mark for each arm."""
    names = [shortened(printable(user), LONGEST_NAME) for user in overview.users]
    metric = overview.task.metric(overview.task.verdict_metric)
    title = f"{metric.label} of every arm for each hospital of {overview.study}"
    above = TOP + LEGEND_HEIGHT * ceil(len(overview.arms) / LEGEND_COLUMNS)
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
