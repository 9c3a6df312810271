"""Columns that number patients or rows: the key that identifies several rows of one patient."""

import re
from collections.abc import Collection, Iterable, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from erosion_client.dataset.column_values import MISSING_MARKERS
from erosion_client.dataset.preparation import nearly_bare, on_other_rows, stand_apart
from erosion_client.dataset.single_column import seem_assigned
from erosion_client.dataset.sources.data_source import DataSource, TableSource
from erosion_client.dataset.study_columns import columns_of
from erosion_client.dataset.text_table import TextTable
from erosion_client.scaffold.column_profile import (
    MEASURED,
    MOST_CATEGORIES,
    MOST_ROWS,
    NUMBER,
    YES_AND_NO,
    Profile,
    profile_of,
)
from erosion_client.scaffold.vocabulary import (
    header_unit,
    is_id,
    is_key,
    is_measurement,
    is_patient_key,
    is_person,
    is_place,
    words_in,
    words_of,
)
from erosion_common.study.study import Study
from erosion_common.tasks.features import CategoryFeature, NumberFeature
from erosion_common.tasks.inputs import TabularTask


def likely_key(profiles: Sequence[Profile]) -> Profile | None:
    """Return the likeliest patient key: the column that repeats most; telling names come first."""
    return min(
        (p for p in profiles if p.kind == "identifier"),
        key=lambda p: (not is_patient_key(p.name), len(p.counts), not is_key(p.name)),
        default=None,
    )


def is_numbered(profile: Profile) -> bool:
    """Return whether a number column seems, by its values, to number patients or rows."""
    is_measured = is_measurement(profile.name) or header_unit(profile.name)
    return profile.kind == "number" and not is_measured and seem_assigned(profile.numbers)


def repeats(key: Profile | None) -> bool:
    """Return whether several rows have the same value."""
    return key is not None and len(key.counts) < sum(key.counts.values())


def rows_of_patients(key: Profile) -> str:
    """Return the start of a remark: "pid: 144 rows of 60 patients, it seems"."""
    rows = sum(key.counts.values())
    return f"{key.name}: {rows} rows of {len(key.counts)} patients, it seems"


def undeclared_key(source: DataSource, study: Study) -> Profile | None:
    """Return a repeating column of the data that neither the study nor `patient` names."""
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
    key = likely_key([profile_of(name, table.columns[name]) for name in names])
    return key if repeats(key) else None


def numbered_features(
    source: DataSource, study: Study, rows: NDArray[np.float64] | NDArray[np.uint8]
) -> list[str]:
    """Return the study's features that number patients here, by their names or their values."""
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


_WHY = words_in("reasons.toml")  # why a column is no feature, by its kind and more
PLAINLY_NONE = tuple(_WHY[kind] for kind in ("text", "constant", "empty"))  # only in the file
MOSTLY = 0.9  # of a column's rows


def why_no_feature(profile: Profile) -> str:
    """Return why a column is left out; "" where a model may read it."""
    if profile.kind not in ("empty", "constant", "identifier", "date") and is_place(profile.name):
        return str(_WHY["place"])
    if profile.kind in ("number", "category"):
        return str(_WHY["numbered"]) if is_numbered(profile) else ""
    return why_not(profile)


def why_not(profile: Profile) -> str:
    """Return why a model cannot read or predict a column with this one's content."""
    kind, counts = profile.kind, profile.counts
    words = [text for text in counts if not NUMBER.fullmatch(text)]
    rows = sum(counts.values())
    measured = sum(num for text, num in counts.items() if MEASURED.match(text))
    which: str = kind
    if kind == "date" and not profile.date_formats:
        which = "dates_in_several_forms" if words else "dates_as_numbers"
    elif kind == "text" and is_person(profile.name):
        which = "people"
    elif kind == "text" and profile.values:
        which = "codes"
    elif kind == "text" and measured >= MOSTLY * rows:  # such as 45 % and 120/80
        which = "with_units"
    elif kind == "text" and 2 * sum(counts[text] for text in words) < rows:
        which = "numbers_and_words"
    elif kind == "constant" and profile.num_missing:
        which = "one_or_none"
    return str(_WHY[which]).replace("WORDS", ", ".join(map(repr, words[:3])))


MANY_BARE = 0.3  # of the rows with an outcome, without nearly any feature
FIRST = {"take": "first"}  # rows, in the joining of a draft


def key_to_join_by(
    table: TextTable, profiles: Sequence[Profile], outcome: Collection[str]
) -> str | None:
    """Return the patient key, where rows with the outcome lack features that other rows have."""
    key = likely_key(profiles)
    features = [p.name for p in profiles if p.name not in outcome and not why_no_feature(p)]
    if key is None or not repeats(key) or not features:
        return None

    def lacking(names: Collection[str]) -> NDArray[np.bool_]:
        found = []
        for column in (table.columns[name] for name in names):
            absent = np.array([text.lower() in MISSING_MARKERS for text in column.texts])
            found.append(absent[column.codes])
        return np.stack(found, axis=1)

    kept: NDArray[np.bool_] = lacking(outcome).sum(axis=1) == 0
    is_missing = lacking(features)
    bare = nearly_bare(is_missing[kept])
    apart = stand_apart(is_missing[kept]) or on_other_rows(features, is_missing, kept)
    return key.name if apart or bare.sum() >= MANY_BARE * len(bare) > 0 else None


BY_NAME = "its name says that it is known only afterwards"


def is_known_afterwards(name: str) -> bool:
    """Return whether a column's name marks data from after the outcome, in several languages."""
    said = f" {' '.join(words_of(name))} "
    wanted, unwanted = _patterns()
    return wanted.search(said) is not None and unwanted.search(said) is None


@cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    words = words_in("known_afterwards.toml")

    def any_of(listed: Iterable[str]) -> re.Pattern[str]:
        each = (re.escape(word).replace(r"\*", "[a-z0-9]*") for word in listed)
        return re.compile(f" (?:{'|'.join(each)})(?= )")

    afterwards = [word for language in words["afterwards"].values() for word in language]
    return any_of(afterwards), any_of(words["before"]["words"])
