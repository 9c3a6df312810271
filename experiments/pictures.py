"""Pictures of the pages: SVG files that are the same for the same figures."""

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Any

import matplotlib as mpl
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = ("#0b6e99", "#c4541a", "#3c7d3c", "#7a4b9c", "#8a6d1f", "#666666")


@contextmanager
def picture(
    columns: int = 1, rows: int = 1, *, height: float = 3.2
) -> Iterator[tuple[Figure, BytesIO]]:
    """A figure to draw on; when the block ends, its SVG is in the buffer."""
    settings: dict[Any, Any] = {
        "svg.hashsalt": "erosion",
        "svg.fonttype": "none",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.prop_cycle": cycler(color=COLOURS),
        "legend.frameon": False,
    }
    with mpl.rc_context(settings):
        figure = Figure(figsize=(4.0 * columns, height * rows), layout="constrained")
        content = BytesIO()
        yield figure, content
        figure.savefig(content, format="svg", metadata={"Date": None})


def add_legend(axes: Axes, *, is_below: bool = False) -> None:
    """A small legend, where there is a curve to name: cells may be missing.

    `is_below`: under the axes, where curves fill all of them.
    """
    if not axes.get_legend_handles_labels()[0]:
        return
    if is_below:
        axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=3)
    else:
        axes.legend(fontsize=7)
