"""A hospital's columns as disclosed: rounded counts, missing values, means and quantiles."""

from collections.abc import Iterable, Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from erosion_client.disclosure.control import AT_ONCE, DisclosureControl
from erosion_common.protocol.messages import ColumnSummary
from erosion_common.tasks.features import Feature, NumberFeature
from erosion_common.tasks.inputs import TabularTask
from erosion_common.tasks.task import CodedColumn, Targets, Task

Groups = NDArray[np.int64]
_MISSING = ""  # among the counts by category, though not a category


def column_summaries(
    cells: DisclosureControl,
    task: Task,
    rows: NDArray[np.generic],
    targets: Targets,
    groups: Groups,
) -> Iterator[ColumnSummary]:
    """Summarise every feature of a table, then the outcome; of images the outcome alone."""
    if isinstance(task, TabularTask):
        for at in range(0, len(task.features), AT_ONCE):
            part = slice(at, at + AT_ONCE)
            columns = zip(task.features[part], rows.T[part], strict=True)
            with cells.transaction():
                found = [_of_feature(cells, *each, groups) for each in columns]
            yield from found
    yield from _outcome(cells, task, targets, groups)


def _of_feature(
    cells: DisclosureControl, feature: Feature, column: NDArray[np.generic], groups: Groups
) -> ColumnSummary:
    values = column.astype(np.float64)
    if isinstance(feature, NumberFeature):
        return number_summary(cells, feature.name, "number", values, groups)
    texts = {category: category for category in feature.categories}
    counts = counts_by_category(values, groups, feature.categories)
    told = cells.counts(feature.name, counts, values, groups, texts)
    return _by_category(feature.name, "category", told)


def _outcome(
    cells: DisclosureControl, task: Task, targets: Targets, groups: Groups
) -> Iterator[ColumnSummary]:
    values = targets.reshape(len(targets), -1).astype(np.float64)
    *times, last = task.target_columns  # follow-up time, where that is a column
    for number, column in enumerate(times):
        yield number_summary(cells, column.name, "time", values[:, number], groups)
    counts = task.groups(task.targets_of_patients(targets, groups))
    if not counts:
        yield number_summary(cells, last.name, "outcome", values[:, -1], groups)
        return
    classes = _texts(last, counts) if isinstance(last, CodedColumn) and not times else None
    told = cells.counts(last.name, {**counts, _MISSING: 0}, values[:, -1], groups, classes)
    yield _by_category(last.name, "outcome", told)


def number_summary(
    cells: DisclosureControl,
    name: str,
    kind: Literal["number", "outcome", "time"],
    values: NDArray[np.float64],
    groups: Groups,
) -> ColumnSummary:
    """Summarise a number column, NaN where one is missing."""
    told = cells.column(name, values, groups)
    num_known = len(np.unique(groups[~np.isnan(values)]))
    num_missing = len(np.unique(groups)) - num_known
    missing = cells.counts(name, {"missing": num_missing}, values, groups)
    few = told.count == 0
    return ColumnSummary(
        name=name,
        kind=kind,
        count=told.count,
        missing=missing["missing"],
        mean=None if few else told.mean,
        deviation=None if few else told.deviation,
        quantiles=told.quantiles,
    )


def counts_by_category(
    values: NDArray[np.float64], groups: Groups, categories: Iterable[str]
) -> dict[str, int]:
    """Count patients by their commonest category, (n,) indices or NaN, and without one."""
    names = [*categories]
    _, patients = np.unique(groups, return_inverse=True)
    is_known = ~np.isnan(values)
    rows_of = np.zeros((int(patients.max(initial=-1)) + 1, len(names)), dtype=np.int64)
    np.add.at(rows_of, (patients[is_known], values[is_known].astype(np.int64)), 1)
    has_one = rows_of.any(axis=1)
    counted = np.bincount(rows_of[has_one].argmax(axis=1), minlength=len(names)).tolist()
    return {**dict(zip(names, counted, strict=True)), _MISSING: int((~has_one).sum())}


def _by_category(
    name: str, kind: Literal["category", "outcome"], told: dict[str, int]
) -> ColumnSummary:
    missing = told.pop(_MISSING)
    count = sum(told.values())
    return ColumnSummary(name=name, kind=kind, count=count, missing=missing, shares=told)


def _texts(column: CodedColumn, classes: Iterable[str]) -> dict[str, str]:
    """Return each class's values in the data, in the order of the codes."""
    return {
        name: "\0".join(sorted(text for text, found in column.codes.items() if found == code))
        for code, name in enumerate(classes)
    }
