"""Columns that number patients or rows: the key by which several rows are of one patient."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from erosion.client.dataset.sources.data_source import DataSource, TableSource
from erosion.client.dataset.study_columns import columns_of
from erosion.client.scaffold.assigned_numbers import seem_assigned
from erosion.client.scaffold.column_names import is_id, is_key, is_measurement, is_patient_key
from erosion.client.scaffold.column_profile import (
    MOST_CATEGORIES,
    MOST_ROWS,
    YES_AND_NO,
    Profile,
    profile,
)
from erosion.client.scaffold.known_units import header_unit
from erosion.common.study.study import Study
from erosion.common.tasks.features import CategoryFeature, NumberFeature
from erosion.common.tasks.inputs import TabularTask


def likely_key(profiles: Sequence[Profile]) -> Profile | None:
    """The column that repeats most is no number of the row; names that say so come first."""
    return min(
        (p for p in profiles if p.kind == "identifier"),
        key=lambda p: (not is_patient_key(p.name), len(p.counts), not is_key(p.name)),
        default=None,
    )


def is_numbered(profile: Profile) -> bool:
    """Whether a column of numbers seems, by its values, to number patients or rows."""
    is_measured = is_measurement(profile.name) or header_unit(profile.name)
    return profile.kind == "number" and not is_measured and seem_assigned(profile.numbers)


def repeats(key: Profile | None) -> bool:
    """Whether several rows have the same value."""
    return key is not None and len(key.counts) < sum(key.counts.values())


def rows_of_patients(key: Profile) -> str:
    """Opens a remark: "pid: 144 rows of 60 patients, it seems"."""
    rows = sum(key.counts.values())
    return f"{key.name}: {rows} rows of {len(key.counts)} patients, it seems"


def undeclared_key(source: DataSource, study: Study) -> Profile | None:
    """A column of the data that repeats and that neither the study nor `patient` names.

    Raises DataError.
    """
    task = study.task
    if not isinstance(source, TableSource) or not isinstance(task, TabularTask):
        return None
    if source.patient is not None:
        return None
    used = columns_of(task, source, split_column=study.evaluation.split_column)
    names = [name for name in source.read(()).header if is_id(name) and name not in used]
    if not names:
        return None
    table = source.read(names)
    key = likely_key([profile(name, table.columns[name]) for name in names])
    return key if repeats(key) else None


def numbered_features(
    source: DataSource, study: Study, rows: NDArray[np.float64] | NDArray[np.uint8]
) -> list[str]:
    """The study's features that number patients here, by their names or their values.

    `rows`: (n, features) of the task; of images there are none.
    """
    task = study.task
    if not isinstance(source, TableSource) or not isinstance(task, TabularTask):
        return []
    return [
        feature.name
        for feature, values in zip(task.features, rows.T, strict=True)
        if _numbers_patients(feature, source, values[~np.isnan(values)])
    ]


def _numbers_patients(
    feature: NumberFeature | CategoryFeature, source: TableSource, values: NDArray[np.float64]
) -> bool:
    local = source.local_name(feature.name)
    names = (feature.name, local)
    num_distinct = len(np.unique(values))
    if local == source.patient or (any(map(is_patient_key, names)) and num_distinct > YES_AND_NO):
        return True
    if isinstance(feature, CategoryFeature) or feature.unit or any(map(is_measurement, names)):
        return False
    is_whole = bool((values == np.floor(values)).all())
    are_few_rows = num_distinct > MOST_CATEGORIES and len(values) <= MOST_ROWS * num_distinct
    return (any(map(is_key, names)) and is_whole and are_few_rows) or seem_assigned(values)
