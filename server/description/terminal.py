"""The description on the terminal."""

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from erosion.common.support.plain_text import printable
from erosion.server.description.description import Description
from erosion.server.description.misfits import middle_of
from erosion.server.description.page import missing_share, number


def show(found: Description, console: Console) -> None:
    """A table of the columns, then what looks wrong, and who gave no description."""
    off = {(f.column, f.hospital) for f in found.findings}
    table = Table(box=SIMPLE)
    table.add_column("column")
    table.add_column("hospital")
    for heading in ("patients", "missing", "median", "deviation"):
        table.add_column(heading, justify="right")
    for name in found.columns:
        for row, (hospital, column) in enumerate(found.of(name).items()):
            style = "bold red" if (name, hospital) in off else ""
            table.add_row(
                Text(printable(name) if row == 0 else ""),
                Text(printable(hospital), style=style),
                str(column.count or "few"),
                missing_share(column),
                Text(number(middle_of(column)), style=style),
                number(column.deviation),
            )
    console.print(table)
    for finding in found.findings:
        console.print(Text(f"{printable(finding.column)}, {finding.hospital}: {finding.text}"))
    for hospital, why in found.declined.items():
        console.print(Text(f"{hospital} gave no description: {printable(why)}"))
    if found.missing:
        console.print(Text(f"Not connected in time: {', '.join(found.missing)}"))
