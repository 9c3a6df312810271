"""Pages of results: a template in Markdown, tables of rows by columns, and pictures.

A page is drawn from the cells there are. An entry without figures is "", and a table or a list
without any entry is "", too: the template leaves out what stands on it.
"""

import re
import textwrap
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

import matplotlib as mpl
from cycler import cycler
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.cells import Cell

Row = TypeVar("Row")
Column = TypeVar("Column")

AS_WRITTEN = ("#", "|", "!", "- ")  # how a block begins that is no paragraph
PAPERS = Path(__file__).parent / "papers"
TEMPLATES = Environment(  # the text of each page, `papers/pages/NAME.md`
    loader=FileSystemLoader(PAPERS / "pages"),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    autoescape=False,
)
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


def page(template: str, pictures: Mapping[str, bytes] | None = None, **values: Any) -> Page:
    """Return the page of a template, filled in with these values; its paragraphs are wrapped."""
    text = TEMPLATES.get_template(f"{template}.md").render(values)
    blocks = (block.strip("\n") for block in re.split(r"\n[ \t]*\n", text))
    return Page(
        "\n\n".join(_wrapped(block) for block in blocks if block.strip()) + "\n", pictures or {}
    )


def constants(name: str) -> dict[str, Any]:
    """Return what `papers/NAME.toml` holds."""
    return tomllib.loads((PAPERS / f"{name}.toml").read_text(encoding="utf-8"))


def _wrapped(block: str) -> str:
    if block.startswith(AS_WRITTEN):
        return block
    return textwrap.fill(block, 100, break_long_words=False, break_on_hyphens=False)


def joined(blocks: Iterable[str]) -> str:
    """Return blocks, tables for example, one below the other; empty ones are left out."""
    return "\n\n".join(filter(None, blocks))


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
