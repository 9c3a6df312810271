"""All hospitals' descriptions of one study, and who gave none."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from erosion_common.protocol.messages import (
    QUANTILES,
    ColumnSummary,
    Range,
    Summary,
    SummaryReply,
    count_range,
)
from erosion_common.rounds.misfits import Misfit, misfits, problem_with_summary
from erosion_common.study.study import Study
from erosion_common.support.text import printable

MOST_SHOWN = 300  # characters of a hospital's words


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

    @property
    def figures(self) -> dict[str, Any]:
        """All of it as JSON, each figure with the range that it lies in."""
        return {
            "study": self.study.name,
            "hospitals": {name: _figures(reply) for name, reply in self.replies.items()},
            "declined": dict(self.declined),
            "missing": self.missing,
            "misfits": [found.model_dump() for found in self.misfits],
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


def problem_with(reply: SummaryReply, study: Study, hospital: str) -> str | None:
    """Return why a description cannot be used; None where it can."""
    if reply.hospital != hospital:
        return f"it answered as {printable(reply.hospital, at_most=50)!r}"
    return problem_with_summary(reply, study)
