"""The hospitals' descriptions of one study: as JSON, on a page, and on the terminal."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from erosion_common.protocol.messages import (
    QUANTILES,
    ColumnSummary,
    Range,
    Summary,
    SummaryReply,
    count_range,
)
from erosion_common.protocol.performance import Estimate
from erosion_common.rounds.misfits import Misfit, middle_of, misfits, share_text
from erosion_common.study.study import Study
from erosion_common.support.text import printable, significant
from erosion_server.output.charts import LONGEST_NAME, Plot
from erosion_server.output.pages import Cell, render_page
from erosion_server.output.words import missing_share, shortened, unreadable


@dataclass(frozen=True, slots=True)
class Descriptions:
    """The replies of the hospitals."""

    study: Study
    replies: Mapping[str, SummaryReply]  # by hospital
    declined: Mapping[str, str]  # hospital -> why

    @property
    def missing(self) -> list[str]:
        """Hospitals that neither answered nor declined."""
        return [n for n in self.study.hospitals if n not in (*self.replies, *self.declined)]

    @property
    def columns(self) -> list[str]:
        """Every column that a hospital described, in the study's order."""
        return list(dict.fromkeys(c.name for r in self.replies.values() for c in r.columns))

    def of(self, column: str) -> dict[str, ColumnSummary]:
        """Return one column by hospital."""
        return {
            hospital: found
            for hospital, reply in self.replies.items()
            for found in reply.columns
            if found.name == column
        }

    def pooled(self, column: str) -> tuple[float, ...]:
        """Return a number's quantiles over all hospitals' patients; () where none has all of its.

        About: a hospital's patients are taken to be spread evenly between its quantiles, and twice
        as far beyond the outer ones as these are from the next.
        """
        known = [
            (each.count, [float(q) for q in each.quantiles if q is not None])
            for each in self.of(column).values()
        ]
        whole = [
            (n, [3 * q[0] - 2 * q[1], *q, 3 * q[-1] - 2 * q[-2]])
            for n, q in known
            if n and len(q) == len(QUANTILES)
        ]
        if not whole:
            return ()
        at = np.unique(np.concatenate([q for _, q in whole]))
        below = [n * np.interp(at, q, (0.0, *QUANTILES, 1.0)) for n, q in whole]
        shares = np.sum(below, axis=0) / sum(n for n, _ in whole)
        return tuple(np.interp(QUANTILES, shares, at).tolist())

    @property
    def figures(self) -> dict[str, Any]:
        """All of it as JSON, each figure with the range that it lies in."""
        return {
            "study": self.study.name,
            "hospitals": {name: _figures(reply) for name, reply in self.replies.items()},
            "declined": dict(self.declined),
            "missing": self.missing,
            "misfits": [found.model_dump() for found in self.misfits],
            "pooled_quantiles": {
                name: dict(zip(map(str, QUANTILES), told, strict=True))
                for name in self.columns
                if (told := self.pooled(name))
            },
        }

    @property
    def misfits(self) -> list[Misfit]:
        """Everything that looks wrong."""
        return misfits(self.replies)


def _figures(reply: Summary) -> dict[str, Any]:
    cell = reply.min_cell
    return {
        "min_cell": cell,
        "patients": _figure(reply.num_patients, count_range(reply.num_patients, cell)),
        "rows": _figure(reply.num_samples, count_range(reply.num_samples, cell)),
        "recorded": _figure(reply.num_recorded, count_range(reply.num_recorded, cell)),
        "incomplete": _figure(reply.num_incomplete, count_range(reply.num_incomplete, cell)),
        "repeated": _figure(reply.num_repeated, count_range(reply.num_repeated, cell)),
        "unreadable_at_most": reply.num_unreadable,
        "columns": {column.name: _column(column, cell) for column in reply.columns},
    }


def _column(column: ColumnSummary, cell: int) -> dict[str, Any]:
    off = column.off_by(cell)
    figures: dict[str, Any] = {
        "kind": column.kind,
        "patients": _figure(column.count, column.count_range(cell)),
        "missing": _figure(column.missing, count_range(column.missing, cell)),
    }
    if column.mean is not None:
        figures["mean"] = _figure(column.mean, Range(column.mean - off, column.mean + off))
    if column.deviation is not None:
        figures["deviation"] = _figure(column.deviation, column.deviation_range(cell))
    if column.quantiles:
        figures["quantiles"] = {
            str(level): None if q is None else _figure(q, Range(q - off, q + off))
            for level, q in zip(QUANTILES, column.quantiles, strict=False)
        }
    if column.shares:
        figures["categories"] = {
            category: {
                "patients": _figure(disclosed, count_range(disclosed, cell)),
                "share": _figure(
                    disclosed / column.count if column.count else 0.0,
                    column.share_range(category, cell),
                ),
            }
            for category, disclosed in column.shares.items()
        }
    return figures


def _figure(disclosed: float, found: Range) -> dict[str, float]:
    return {"disclosed": disclosed, "low": found.low, "high": found.high}


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
    if value is None or not off:
        return number(value)
    return Cell(number(value), f"±{significant(off, 2)}")


def counted(told: int, found: Range) -> Cell:
    """Return a number of patients, and between which two it lies."""
    return Cell(str(told or "few or none"), f"({found.low:.0f}–{found.high:.0f})")


def number(value: float | None) -> str:
    """Return a figure to three digits."""
    return "" if value is None else significant(value)


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
                    number(middle_of(column)) + (f" ±{significant(off_by, 2)}" if off_by else ""),
                    style=style,
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
        console.print(Text(f"No answer in time: {', '.join(found.missing)}"))
