"""The description on the terminal."""

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from erosion.common.protocol.summary import count_range
from erosion.common.rounds.misfits import middle_of
from erosion.common.support.text import printable
from erosion.server.description.description import Description
from erosion.server.description.page import missing_share, number


def show(found: Description, console: Console) -> None:
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
        console.print(
            Text(f"{hospital}: {reply.num_patients or 'few'} patients ({low:.0f}–{high:.0f})")
        )
    for finding in found.misfits:
        console.print(Text(f"{printable(finding.column)}, {finding.hospital}: {finding.text}"))
    for hospital, why in found.declined.items():
        console.print(Text(f"{hospital} gave no description: {printable(why)}"))
    if found.missing:
        console.print(Text(f"Not connected in time: {', '.join(found.missing)}"))
