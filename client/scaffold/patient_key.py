"""A column by which several rows are of one patient; where nobody names it, rows are patients."""

from collections.abc import Sequence

from erosion.client.dataset.sources.data_source import DataSource, TableSource
from erosion.client.dataset.study_columns import columns_of
from erosion.client.scaffold.column_profile import KEY, Profile, is_id, profile
from erosion.common.study.study import Study
from erosion.common.tasks.inputs import TabularTask


def likely_key(profiles: Sequence[Profile]) -> Profile | None:
    """The column that repeats most is no number of the row; among equals its name tells."""
    keys = [profile for profile in profiles if profile.kind == "identifier"]
    return min(keys, key=lambda p: (len(p.counts), KEY.search(p.name) is None), default=None)


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
