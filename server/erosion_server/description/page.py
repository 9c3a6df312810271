"""The description for people: one HTML page, and a table on the terminal."""

from collections.abc import Mapping

from markupsafe import Markup
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from erosion_common.protocol.messages import QUANTILES, ColumnSummary, Range, count_range
from erosion_common.protocol.performance import Estimate
from erosion_common.rounds.misfits import middle_of, share_text
from erosion_common.support.text import printable
from erosion_server.description.description import Descriptions
from erosion_server.output.charts import LONGEST_NAME, Plot
from erosion_server.output.pages import Cell, render_page
from erosion_server.output.words import missing_share, shortened, unreadable


def description_page(found: Descriptions) -> str:
    """Return the whole page."""
    number_described = len(found.replies)
    misfits = found.misfits
    off = len({finding.column for finding in misfits})
    headline = "1 column does not fit." if off == 1 else f"{off} columns do not fit."
    if number_described < 2 or not off:
        headline = "Nothing can be compared." if number_described < 2 else "No column stands out."
    return render_page(
        "description.html",
        found=found,
        headline=headline,
        is_fine=not off and number_described > 1,
        fewest=min((reply.min_cell for reply in found.replies.values()), default=0),
        misfits=misfits,
        features=getattr(found.study.task, "features", ()),
        levels=[f"{level:.0%}" for level in QUANTILES],
        Cell=Cell,
        about=_about,
        count_range=count_range,
        counted=counted,
        missing_share=missing_share,
        number=number,
        picture=_picture,
        share_of=_share_of,
        unreadable=unreadable,
    )


def _share_of(column: ColumnSummary, category: str, cell: int) -> str | Cell:
    """Return the share of those of a category, in words where their number is not disclosed."""
    if category not in column.shares:
        return ""
    told, (low, high) = column.shares[category], column.share_range(category, cell)
    said = share_text(told / column.count) if column.count and told else "few or none"
    return Cell(said, f"({100 * low:.0f}–{100 * high:.0f}%)")


def _about(value: float | None, column: ColumnSummary, cell: int) -> str | Cell:
    off = column.off_by(cell)
    return Cell(number(value), f"±{off:.2g}") if off and value is not None else number(value)


def counted(told: int, found: Range) -> Cell:
    """Return a number of patients, and between which two it lies."""
    return Cell(str(told or "few or none"), f"({found.low:.0f}–{found.high:.0f})")


def number(value: float | None) -> str:
    """Return a figure to three digits."""
    return "" if value is None else f"{value:.3g}"


def _picture(name: str, columns: Mapping[str, ColumnSummary]) -> Markup:
    """Return each hospital's middle half, median and outer quantiles; "" where none differ."""
    known = {h: (m, c) for h, c in columns.items() if (m := middle_of(c)) is not None}
    ends = [v for m, c in known.values() for v in (m, *c.quantiles) if v is not None]
    if not ends or min(ends) == max(ends):
        return Markup()
    called = {hospital: shortened(printable(hospital), LONGEST_NAME) for hospital in known}
    plot = Plot.of_rows([*called.values()], (min(ends), max(ends)), name)
    for row, (hospital, (middle, column)) in enumerate(reversed(known.items())):
        told = [q for q in column.quantiles if q is not None] or [middle]
        half = None
        if len(column.quantiles) == len(QUANTILES):
            _, first, _, third, _ = column.quantiles
            if first is not None and third is not None:
                half = Estimate(value=middle, low=first, high=third)
        outer = Estimate(value=middle, low=told[0], high=told[-1])
        plot.interval(row, called[hospital], outer, 0, half)
    return plot.svg(f"Medians and middle halves of {name} by hospital")


def show(found: Descriptions, console: Console) -> None:
    """A table of the columns, then what looks wrong, and who gave no description."""
    off = {(f.column, f.hospital) for f in found.misfits}
    table = Table(box=SIMPLE)
    table.add_column("column")
    table.add_column("hospital")
    for heading in ("patients", "missing", "median", "deviation"):
        table.add_column(heading, justify="right")
    for name in found.columns:
        for row, (hospital, column) in enumerate(found.of(name).items()):
            cell = found.replies[hospital].min_cell
            (low, high), off_by = column.count_range(cell), column.off_by(cell)
            style = "bold red" if (name, hospital) in off else ""
            table.add_row(
                Text(printable(name) if row == 0 else ""),
                Text(printable(hospital), style=style),
                f"{column.count or 'few'} ({low:.0f}–{high:.0f})",
                missing_share(column),
                Text(
                    number(middle_of(column)) + (f" ±{off_by:.2g}" if off_by else ""), style=style
                ),
                number(column.deviation),
            )
    console.print(table)
    console.print("In brackets: between which two numbers the truth lies.")
    for hospital, reply in found.replies.items():
        low, high = count_range(reply.num_patients, reply.min_cell)
        said = f"{hospital}: {reply.num_patients or 'few'} patients ({low:.0f}–{high:.0f})"
        console.print(Text("; ".join(filter(None, (said, unreadable(reply))))))
    for finding in found.misfits:
        console.print(Text(f"{printable(finding.column)}, {finding.hospital}: {finding.text}"))
    for hospital, why in found.declined.items():
        console.print(Text(f"{hospital} gave no description: {printable(why)}"))
    if found.missing:
        console.print(Text(f"Not connected in time: {', '.join(found.missing)}"))
