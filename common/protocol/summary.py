"""A hospital's description of its columns before any training, under its own small-cell rule.

How far a figure can be off follows from the smallest cell alone: the ranges here hold the truth.
"""

from math import ceil, log2
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from erosion.common.protocol.figures import LARGEST_FIGURE, MOST_COLUMNS, Count, Figure
from erosion.common.settings.base import Settings
from erosion.common.settings.names import Said, Version

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


class Range(NamedTuple):
    """Between which two numbers, both included, a figure lies."""

    low: float
    high: float


def count_range(told: int, cell: int) -> Range:
    """The range of a count that left as `told`: 0 for fewer than a cell, else a multiple of it."""
    if told == 0:
        return Range(0, max(0, cell - 1))
    return Range(max(cell, told - cell + 1), told + max(0, cell - 1))


def relative_step(count: int, cell: int) -> float:
    """cell / n as a power of two, at most 1: how finely n patients' figures are told."""
    return min(1.0, 2.0 ** ceil(log2(cell / count))) if min(count, cell) > 0 else 1.0


class ColumnSummary(Settings):
    """One column of the study, over the training patients. Each patient counts once.

    Of several rows a patient counts with the mean of its numbers, or with its commonest category.
    """

    name: Said
    kind: Literal["number", "category", "outcome", "time"]  # "time": until an outcome
    count: Count  # who have a value, to a multiple of the site's smallest cell
    missing: Count  # who have none in any row, likewise
    mean: Figure | None = None  # of a number; far values are moved to a fence before
    deviation: float | None = Field(default=None, ge=0, le=LARGEST_FIGURE)
    quantiles: tuple[Figure | None, ...] = Field(default=(), max_length=len(QUANTILES))
    # of QUANTILES: means of the cell of values around; None: too few beyond it
    shares: dict[str, Count] = {}  # noqa: RUF012 - patients by category; 0 for fewer than a cell.
    # `count` is their sum

    def count_range(self, cell: int) -> Range:
        """The range of the number of patients who have a value."""
        low, high = count_range(self.count, cell)
        hidden = sum(told == 0 for told in self.shares.values())
        if self.shares and self.count == 0:
            low, high = 0, 0
        return Range(low, high + hidden * max(0, cell - 1))

    def share_range(self, category: str, cell: int) -> Range:
        """The range of a category's share of the patients who have a value."""
        low, high = count_range(self.shares[category], cell)
        others = [count_range(told, cell) for name, told in self.shares.items() if name != category]
        fewest, most = sum(r.low for r in others), sum(r.high for r in others)
        return Range(
            low / (low + most) if low else 0.0,
            high / (high + fewest) if high else 0.0,
        )

    def off_by(self, cell: int) -> float:
        """How far the mean and the quantiles can be off by rounding."""
        return (self.deviation or 0.0) * relative_step(self.count, cell)

    def deviation_range(self, cell: int) -> Range:
        """The range of the deviation, which leaves as a power of two."""
        factor, deviation = 2 ** relative_step(self.count, cell), self.deviation or 0.0
        return Range(deviation / factor, deviation * factor)


class Summary(Settings):
    """The training patients of a hospital, as it tells of them before any training."""

    min_cell: Count  # nothing here is about fewer patients
    num_samples: Count  # rows or images, to a multiple of the cell
    num_patients: Count  # likewise
    columns: Annotated[tuple[ColumnSummary, ...], Field(max_length=MOST_COLUMNS, fail_fast=True)]


class SummaryReply(Summary):
    """A hospital describes its patients."""

    hospital: Said
    software: Version
