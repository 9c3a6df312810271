"""Pages of results: blocks of Markdown, tables of rows by columns, and pictures.

A page is drawn from the cells there are. An entry without figures is "", and a table, a section
or a bullet without any entry is "", too: it is left out.
"""

import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, TypeVar

import matplotlib as mpl
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.cells import Cell

Block = str | Iterable["Block"]
Row = TypeVar("Row")
Column = TypeVar("Column")

AS_WRITTEN = ("#", "|", "!", "- ")  # how a block begins that is no paragraph
COLOURS = ("#0b6e99", "#c4541a", "#3c7d3c", "#7a4b9c", "#8a6d1f", "#666666")
STYLE: Mapping[Any, Any] = {
    "svg.hashsalt": "erosion",  # the same file for the same figures
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": cycler(color=COLOURS),
    "legend.frameon": False,
}


@dataclass(frozen=True, slots=True)
class Page:
    """What is drawn: a text in Markdown, and pictures by file name."""

    text: str
    pictures: Mapping[str, bytes] = field(default_factory=dict)


def page(*blocks: Block, pictures: Mapping[str, bytes] | None = None) -> Page:
    """Return the page with these blocks, one below the other."""
    return Page("\n\n".join(_texts(blocks)) + "\n", pictures or {})


def _texts(block: Block) -> Iterator[str]:
    if not isinstance(block, str):
        for part in block:
            yield from _texts(part)
    elif block.startswith(AS_WRITTEN):
        yield block.rstrip("\n")
    elif block:
        yield textwrap.fill(block, 100, break_long_words=False, break_on_hyphens=False)


def section(heading: str, *blocks: Block) -> Block:
    """Return the blocks below a heading; "" where one of them is empty."""
    return (heading, *blocks) if all(blocks) else ""


def bullets(lines: Iterable[str]) -> str:
    """Return a list."""
    return "\n".join(f"- {line}" for line in lines)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of rows, each with its name first; "" where no row has an entry."""
    lines = [f"| {' | '.join(row)} |" for row in rows if any(row[1:])]
    head = [f"| {' | '.join(header)} |", f"|{' --- |' * len(header)}"]
    return "\n".join([*head, *lines]) if lines else ""


def grid(
    corner: str,
    rows: Mapping[str, Row],
    columns: Mapping[str, Column],
    entry: Callable[[Row, Column], str],
) -> str:
    """Return a table with `entry` of every row and column, by their names."""
    keys = columns.values()
    lines = ([name, *(entry(row, column) for column in keys)] for name, row in rows.items())
    return table([corner, *columns], lines)


def named(keys: Iterable[Row]) -> dict[str, Row]:
    """Return rows or columns with themselves as names."""
    return {str(key): key for key in keys}


def beside(ours: str, published: str) -> str:
    """Return a figure of ours with the published one in square brackets, where there are both."""
    return f"{ours} [{published}]" if ours and published else ours


def where(cells: Mapping[str, Cell], **settings: Any) -> list[Cell]:
    """Return the cells with these settings."""
    return [cell for cell in cells.values() if settings.items() <= cell.plan.config.items()]


@contextmanager
def picture(
    columns: int = 1, rows: int = 1, *, height: float = 3.2
) -> Iterator[tuple[Figure, BytesIO]]:
    """A figure to draw on; when the block ends, its SVG is in the buffer."""
    with mpl.rc_context(dict(STYLE)):
        figure = Figure(figsize=(4.0 * columns, height * rows), layout="constrained")
        content = BytesIO()
        yield figure, content
        figure.savefig(content, format="svg", metadata={"Date": None})


def add_legend(axes: Axes, *, is_below: bool = False) -> None:
    """Add a small legend, where there is a curve to name; `is_below`: under the axes."""
    if not axes.get_legend_handles_labels()[0]:
        return
    if is_below:
        axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=3)
    else:
        axes.legend(fontsize=7)
