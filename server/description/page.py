"""The description as one HTML page: every column of every hospital beside the others'."""

from collections.abc import Mapping

from erosion.common.protocol.summary import (
    QUANTILES,
    ColumnSummary,
    Range,
    Summary,
    count_range,
)
from erosion.common.rounds.misfits import middle_of, share_text
from erosion.server.description.description import Description
from erosion.server.output.report.html_table import Cell, table, text
from erosion.server.output.report.whole_page import whole_page

ROUNDED = (
    "Counts, means and quantiles are rounded by the hospitals themselves; in small print: between"
    " which two numbers the truth lies, or how far off it is. A patient counts once: with the mean"
    " of its rows' numbers, or with its commonest category. Far values are moved to a fence before"
    " means are taken, and a quantile is the mean of the values around it."
)
WIDTH, HEIGHT, LEFT = 760, 24, 130  # of a picture: each hospital has a line


def description_page(found: Description) -> str:
    """The whole page."""
    return whole_page(
        f"Before training: {found.study.name}",
        [
            _head(found),
            _warnings(found),
            _hospitals(found),
            *(_column(name, found) for name in found.columns),
        ],
    )


def _head(found: Description) -> str:
    number = len(found.replies)
    off = len({finding.column for finding in found.misfits})
    first = "No column stands out." if not off else f"{off} columns do not fit."
    if off == 1:
        first = "1 column does not fit."
    if number < 2:
        first = "Nothing can be compared."
    cells = sorted({reply.min_cell for reply in found.replies.values()})
    fewest = f" No figure is about fewer than {cells[0]} patients." if cells else ""
    return (
        f"<header><p>Study {text(found.study.name)}, before any training</p></header>\n"
        f'<div class="{"verdict" if off or number < 2 else "verdict found"}"><h1>{text(first)}</h1>'
        f"<p>{number} of {len(found.study.hospitals)} hospitals described their training patients."
        f"{fewest} {ROUNDED}</p></div>\n"
    )


def _warnings(found: Description) -> str:
    rows = [[f.column, f.hospital, f.text] for f in found.misfits]
    if not rows:
        return ""
    return "<h2>Look at these first</h2>\n" + table(("Column", "Hospital", "What"), rows)


def _hospitals(found: Description) -> str:
    rows: list[list[str | Cell]] = [
        [name, *_numbers(found.replies[name]), "described"]
        if name in found.replies
        else [name, "", "", f"declined: {found.declined[name]}"]
        if name in found.declined
        else [name, "", "", "did not connect in time"]
        for name in found.study.hospitals
    ]
    return "<h2>Hospitals</h2>\n" + table(
        ("Hospital", "Patients", "Rows or images", ""), rows, numbers=(1, 2)
    )


def _numbers(reply: Summary) -> tuple[Cell, Cell]:
    """Patients and rows."""
    told = reply.num_patients, reply.num_samples
    patients, rows = (counted(n, count_range(n, reply.min_cell)) for n in told)
    return patients, rows


def _column(name: str, found: Description) -> str:
    columns = found.of(name)
    unit = next(
        (f.unit for f in getattr(found.study.task, "features", ()) if f.name == name and f.unit), ""
    )
    title = f"<h2>{text(name)}{f' <small>{text(unit)}</small>' if unit else ''}</h2>\n"
    if all(column.kind == "category" or column.shares for column in columns.values()):
        return title + _shares(columns, found)
    off = {f.hospital: f.text for f in found.misfits if f.column == name}
    quantiles = [f"{q:.0%}" for q in QUANTILES]
    headings = ("Hospital", "Patients", "Missing", "Mean", "Deviation", *quantiles, "")
    rows = []
    for hospital, column in columns.items():
        cell = found.replies[hospital].min_cell
        told = (*column.quantiles, *[None] * len(QUANTILES))[: len(QUANTILES)]
        rows.append(
            [
                hospital,
                counted(column.count, column.count_range(cell)),
                _missing(column, cell),
                _about(column.mean, column, cell),
                Cell(number(column.deviation), _between(column.deviation_range(cell)))
                if column.deviation
                else number(column.deviation),
                *(_about(q, column, cell) for q in told),
                off.get(hospital, ""),
            ]
        )
    numbers = range(1, len(headings) - 1)
    return title + _picture(columns) + table(headings, rows, numbers=numbers)


def _shares(columns: Mapping[str, ColumnSummary], found: Description) -> str:
    categories = list(dict.fromkeys(c for column in columns.values() for c in column.shares))
    rows = [
        [
            hospital,
            counted(column.count, column.count_range(found.replies[hospital].min_cell)),
            _missing(column, found.replies[hospital].min_cell),
            *(
                _share_of(column, category, found.replies[hospital].min_cell)
                for category in categories
            ),
        ]
        for hospital, column in columns.items()
    ]
    headings = ("Hospital", "Patients", "Missing", *categories)
    return table(headings, rows, numbers=range(1, len(headings)))


def _share_of(column: ColumnSummary, category: str, cell: int) -> str | Cell:
    """The share of those of a category, in words where their number is not told."""
    if category not in column.shares:
        return ""
    told, (low, high) = column.shares[category], column.share_range(category, cell)
    said = share_text(told / column.count) if column.count and told else "few or none"
    return Cell(said, f"({100 * low:.0f}–{100 * high:.0f}%)")


def _missing(column: ColumnSummary, cell: int) -> Cell:
    low, high = count_range(column.missing, cell)
    return Cell(missing_share(column), f"({low:.0f}–{high:.0f})")


def _about(value: float | None, column: ColumnSummary, cell: int) -> str | Cell:
    """A mean or a quantile, and how far off it can be."""
    off = column.off_by(cell)
    return Cell(number(value), f"±{off:.2g}") if off and value is not None else number(value)


def _between(found: Range) -> str:
    return f"({number(found.low)}–{number(found.high)})"


def counted(told: int, found: Range) -> Cell:
    """A number of patients, and between which two it lies."""
    return Cell(str(told or "few or none"), f"({found.low:.0f}–{found.high:.0f})")


def missing_share(column: ColumnSummary) -> str:
    """The share of patients without a value, in words where it is not told."""
    if not column.missing:
        return "few or none"
    return share_text(column.missing / (column.count + column.missing))


def number(value: float | None) -> str:
    """A figure to three digits."""
    return "" if value is None else f"{value:.3g}"


def _picture(columns: Mapping[str, ColumnSummary]) -> str:
    """Each hospital's middle half as a bar, its median as a line, what is beyond as a thin line."""
    known = {h: c for h, c in columns.items() if middle_of(c) is not None}
    ends = [
        value
        for column in known.values()
        for value in (*column.quantiles, column.mean)
        if value is not None
    ]
    if not ends or min(ends) == max(ends):
        return ""
    low, high = min(ends), max(ends)

    def at(value: float) -> float:
        return LEFT + (value - low) / (high - low) * (WIDTH - LEFT - 20)

    parts = []
    for row, (hospital, column) in enumerate(known.items()):
        y = row * HEIGHT + HEIGHT / 2
        told = [q for q in column.quantiles if q is not None]
        parts.append(f'<text x="0" y="{y + 4:.0f}" fill="var(--ink)">{text(hospital)}</text>')
        if len(told) > 1:
            parts.append(
                f'<line x1="{at(told[0]):.1f}" x2="{at(told[-1]):.1f}" y1="{y}" y2="{y}"'
                ' stroke="var(--faint)"/>'
            )
        quartiles = column.quantiles[1:4:2] if len(column.quantiles) == len(QUANTILES) else ()
        if len(quartiles) == 2 and None not in quartiles:
            first, last = (q for q in quartiles if q is not None)
            parts.append(
                f'<rect x="{at(first):.1f}" y="{y - 6}" height="12"'
                f' width="{max(1.0, at(last) - at(first)):.1f}"'
                ' fill="var(--series-5)" opacity="0.6"/>'
            )
        middle = middle_of(column)
        if middle is not None:
            parts.append(
                f'<line x1="{at(middle):.1f}" x2="{at(middle):.1f}" y1="{y - 9}" y2="{y + 9}"'
                ' stroke="var(--series-0)" stroke-width="3"/>'
            )
    height = HEIGHT * len(known) + 18
    parts += [
        f'<text x="{LEFT}" y="{height - 4}" fill="var(--faint)">{low:.3g}</text>',
        f'<text x="{WIDTH - 20}" y="{height - 4}" fill="var(--faint)" text-anchor="end">'
        f"{high:.3g}</text>",
    ]
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" font-size="12"'
        f' aria-label="Medians and middle halves by hospital">{"".join(parts)}</svg>\n'
    )
