"""A hospital's description of its columns before any training, under its own small-cell rule."""

from typing import Annotated, Literal

from pydantic import Field

from erosion.common.protocol.messages import LARGEST_FIGURE, MOST_COLUMNS, Count, Figure
from erosion.common.settings.base import Settings

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


class ColumnSummary(Settings):
    """One column of the study, over the training patients."""

    name: str
    kind: Literal["number", "category", "outcome"]
    count: Count  # who have a value, to a multiple of the site's smallest cell
    missing: Count  # who lack it, in one of their rows at least; likewise
    mean: Figure | None = None  # of a number
    deviation: float | None = Field(default=None, ge=0, le=LARGEST_FIGURE)
    quantiles: tuple[Figure | None, ...] = Field(default=(), max_length=len(QUANTILES))
    # of QUANTILES; None: too few beyond it
    shares: dict[str, Count] = {}  # noqa: RUF012 - patients by category; 0 for fewer than a cell


class SummaryReply(Settings):
    """A hospital describes its patients."""

    hospital: str
    software: str
    min_cell: Count  # nothing here is about fewer patients
    num_samples: Count
    columns: Annotated[tuple[ColumnSummary, ...], Field(max_length=MOST_COLUMNS, fail_fast=True)]
