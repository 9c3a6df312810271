"""A hospital's columns as it tells them: counts, missing values, means and quantiles, rounded."""

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from erosion.client.cells.cells import Cells
from erosion.common.protocol.summary import ColumnSummary
from erosion.common.tasks.features import NumberFeature
from erosion.common.tasks.inputs import TabularTask
from erosion.common.tasks.task import CodedColumn, Targets, Task

Groups = NDArray[np.int64]


def column_summaries(
    cells: Cells, task: Task, rows: NDArray[np.generic], targets: Targets, groups: Groups
) -> Iterator[ColumnSummary]:
    """Every feature of a table, then the outcome; of images the outcome alone."""
    if isinstance(task, TabularTask):
        for feature, column in zip(task.features, rows.T, strict=True):
            values = column.astype(np.float64)
            if isinstance(feature, NumberFeature):
                yield number_summary(cells, feature.name, "number", values, groups)
                continue
            counts = {
                category: _num_patients(groups[values == code])
                for code, category in enumerate(feature.categories)
            }
            texts = {category: category for category in feature.categories}
            yield _by_category(cells, feature.name, "category", counts, values, groups, texts)
    counts = task.groups(task.targets_of_patients(targets, groups))
    outcome = task.target_columns[0]
    values = targets.reshape(len(targets), -1).astype(np.float64)[:, 0]
    if not counts:
        yield number_summary(cells, outcome.name, "outcome", values, groups)
        return
    classes = _texts(outcome, counts) if isinstance(outcome, CodedColumn) else None
    yield _by_category(cells, outcome.name, "outcome", counts, values, groups, classes)


def number_summary(
    cells: Cells, name: str, kind: str, values: NDArray[np.float64], groups: Groups
) -> ColumnSummary:
    """A column of numbers, NaN where one is missing."""
    told = cells.column(name, values, groups)
    missing = cells.counts(
        name, {"missing": _num_patients(groups[np.isnan(values)])}, values, groups
    )
    few = told.count == 0
    return ColumnSummary(
        name=name,
        kind="outcome" if kind == "outcome" else "number",
        count=told.count,
        missing=missing["missing"],
        mean=None if few else told.mean,
        deviation=None if few else told.deviation,
        quantiles=told.quantiles,
    )


def _by_category(
    cells: Cells,
    name: str,
    kind: str,
    counts: dict[str, int],
    values: NDArray[np.float64],
    groups: Groups,
    texts: dict[str, str] | None,
) -> ColumnSummary:
    told = cells.counts(
        name, {**counts, "": _num_patients(groups[np.isnan(values)])}, values, groups, texts
    )  # "" is no category
    missing = told.pop("")
    return ColumnSummary(
        name=name,
        kind="outcome" if kind == "outcome" else "category",
        count=sum(told.values()),
        missing=missing,
        shares=told,
    )


def _texts(column: CodedColumn, classes: Iterable[str]) -> dict[str, str]:
    """Of each class, in the order of their codes, the values in the data that mean it."""
    return {
        name: "\0".join(sorted(text for text, found in column.codes.items() if found == code))
        for code, name in enumerate(classes)
    }


def _num_patients(groups: Groups) -> int:
    """Of how many patients these rows (n,) are."""
    return len(np.unique(groups))
