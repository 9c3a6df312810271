"""HTML whose every text is escaped: a hospital's words must not become part of the page."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from erosion.server.output.plain_text import printable


def text(value: object, *, at_most: int = 2000) -> str:
    """`value` as HTML text or attribute value, made harmless."""
    return escape(printable(str(value), at_most=at_most), quote=True)


@dataclass(frozen=True, slots=True)
class Cell:
    """A table cell with a remark in small print below; `link` is where its value leads."""

    value: str
    remark: str = ""
    link: str = ""


Row = Sequence[str | Cell]


def table(
    headings: Sequence[str],
    rows: Sequence[Row],
    *,
    numbers: Sequence[int] = (),
    best: int | None = None,
    style: str = "",
) -> str:
    """A table; `numbers` are the right-aligned columns, `best` the row to stress."""
    head = "".join(
        f'<th scope="col"{_number(column, numbers)}>{text(heading)}</th>'
        for column, heading in enumerate(headings)
    )
    body = "\n".join(
        f'<tr class="best">{_cells(row, numbers)}</tr>'
        if index == best
        else f"<tr>{_cells(row, numbers)}</tr>"
        for index, row in enumerate(rows)
    )
    opening = f'<table class="{text(style)}">' if style else "<table>"
    thead = f"<thead><tr>{head}</tr></thead>\n" if headings else ""
    return f'<div class="scroll">{opening}\n{thead}<tbody>\n{body}\n</tbody></table></div>'


def _cells(row: Row, numbers: Sequence[int]) -> str:
    return "".join(
        f"<td{_number(column, numbers)}>{_content(cell)}</td>" for column, cell in enumerate(row)
    )


def _content(cell: str | Cell) -> str:
    if isinstance(cell, str):
        return text(cell)
    value = text(cell.value)
    if cell.link:
        value = f'<a href="{text(cell.link)}">{value}</a>'
    return value + (f"<small>{text(cell.remark)}</small>" if cell.remark else "")


def _number(column: int, numbers: Sequence[int]) -> str:
    return ' class="number"' if column in numbers else ""
