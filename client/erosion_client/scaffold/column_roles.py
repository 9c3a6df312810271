"""Columns that number patients or rows: the key that identifies several rows of one patient."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from erosion_client.dataset.column_values import MISSING_MARKERS
from erosion_client.dataset.preparation import nearly_bare, on_other_rows, stand_apart
from erosion_client.dataset.single_column import OutcomeValues, seem_assigned, suspicion
from erosion_client.dataset.sources.data_source import DataSource, TableSource
from erosion_client.dataset.study_columns import columns_of
from erosion_client.dataset.text_table import TextTable
from erosion_client.scaffold.column_profile import (
    DIAGNOSIS,
    MEASURED,
    MOST_CATEGORIES,
    MOST_ROWS,
    NUMBER,
    YES_AND_NO,
    Kind,
    Profile,
    profile_of,
)
from erosion_client.scaffold.value_words import in_order, one_spelling
from erosion_client.scaffold.vocabulary import (
    header_unit,
    is_coded,
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
from erosion_common.support.text import without_accents
from erosion_common.tasks.features import CategoryFeature, NumberFeature
from erosion_common.tasks.inputs import TabularTask
from erosion_common.tasks.task import Floats


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


def merged_cells(key: Profile | None) -> str:
    """Return a remark where a key is on the first of several rows alone; "" where it is not."""
    if key is None or repeats(key) or not is_patient_key(key.name) or not key.num_missing:
        return ""
    return (
        f"{key.name}: no value on {key.num_missing} of {key.num_rows} rows, as where cells were"
        " merged: write each patient's on all of its rows, or these count as other patients"
    )


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


WHY: Mapping[Kind, str] = {
    "identifier": "it seems to identify patients (patient under [data] of the site file)",
    "date": "it holds dates (make an age of them: [data.derive] of the site file)",
    "text": "it holds free text, or too many categories",
    "constant": "all its values are the same",
    "empty": "it has no values",
    "number": "it holds numbers",
    "category": "it has too many categories",
}
PLAINLY_NONE = (WHY["text"], WHY["constant"], WHY["empty"])  # only in the file
NUMBERED = (
    "it seems by its values to number patients or rows: whole numbers, nearly all different (if it"
    " is a measurement, add it to features, with its unit)"
)
NAMES = "it seems to hold people's names (if it holds none, add it to features)"
ONE_OR_NONE = (
    "it has one value, and rows without any (if these mean no, as where only a yes is marked, write"
    " that into the table)"
)
NO_PLAIN_NUMBERS = (
    "it seems to hold codes, too many for categories, or numbers with a unit or words (if it is a"
    " number, export it as numbers alone, and empty cells)"
)
MOSTLY = 0.9  # of a column's rows
LONGEST_NAME = 200  # of a column in a study


def why_no_feature(profile: Profile) -> str:
    """Return why a column is left out; "" where a model may read it."""
    if len(profile.name) > LONGEST_NAME:
        return f"its name is longer than {LONGEST_NAME} characters (shorten it in the table)"
    if profile.kind not in ("empty", "constant", "identifier", "date") and is_place(profile.name):
        return (
            "it seems to name a hospital, ward or centre (if several hospitals are in this table,"
            " make a table of each; if it is something else, add it to features)"
        )
    if profile.kind in ("number", "category"):
        return NUMBERED if is_numbered(profile) else ""
    return why_not(profile)


def why_not(profile: Profile) -> str:
    """Return why a model cannot read or predict a column with this one's content."""
    words = [text for text in profile.counts if not NUMBER.fullmatch(text)]
    if profile.kind == "date" and not profile.date_formats and words:
        some = ", ".join(map(repr, words[:3]))
        return f"it seems to hold dates in several forms, such as {some} (write all in one form)"
    if profile.kind == "date" and not profile.date_formats:
        return "it seems to hold dates as numbers of days or seconds (write them as dates)"
    if profile.kind == "text" and is_person(profile.name):
        return NAMES
    are_diagnoses = bool(words) and all(map(DIAGNOSIS.fullmatch, words))
    is_coded_or_number = bool(profile.values) or is_coded(profile.name) or are_diagnoses
    all_rows, rows = sum(profile.counts.values()), sum(profile.counts[text] for text in words)
    measured = sum(num for text, num in profile.counts.items() if MEASURED.match(text))
    has_numbers = measured >= MOSTLY * all_rows or 2 * rows < all_rows  # 45 %, 120/80, many words
    if profile.kind == "text" and (is_coded_or_number or has_numbers):
        return NO_PLAIN_NUMBERS
    if profile.kind == "constant" and profile.num_missing:
        return ONE_OR_NONE
    return WHY[profile.kind]


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


def telling(
    table: TextTable, profiles: Sequence[Profile], target: str, time: str | None = None
) -> dict[str, str]:
    """Return columns that may be target leakage, and the reason.

    Whether they have a value at all also counts: a cause of death, or its date, shows who died.
    `time`: the follow-up time, where `target` is whether the event happened.
    """
    by_name = {profile.name: profile for profile in profiles}
    kept, outcome = _outcome(table, by_name, target, time)
    found: dict[str, str] = {}
    for profile in profiles:
        if profile.name in (target, time):
            continue
        values, is_category = _values(table, profile)
        why = suspicion(values[kept], outcome, is_category=is_category)
        if why or (is_known_afterwards(profile.name) and not why_no_feature(profile)):
            found[profile.name] = why or BY_NAME
    return found


def is_known_afterwards(name: str) -> bool:
    """Return whether a column's name marks data from after the outcome, in several languages."""
    said = f" {' '.join(words_of(name))} "
    wanted, unwanted = _patterns()
    return wanted.search(said) is not None and unwanted.search(said) is None


@cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    words = words_in("known_afterwards.toml")

    def any_of(listed: Iterable[str]) -> re.Pattern[str]:
        plain = (without_accents(word.casefold()) for word in listed)
        each = (re.escape(word).replace(r"\*", "[^ ]*") for word in plain)
        return re.compile(f" (?:{'|'.join(each)})(?= )")

    afterwards = [word for language in words["afterwards"].values() for word in language]
    return any_of(afterwards), any_of(words["before"]["words"])


def _outcome(
    table: TextTable, profiles: Mapping[str, Profile], target: str, time: str | None
) -> tuple[NDArray[np.bool_], OutcomeValues]:
    """Return which rows (n,) have the outcome, and its value there."""
    column = profiles[target]
    if time is not None:
        times, events = _numbers(table, profiles[time]), _codes(table, target)
        kept = ~np.isnan(times) & ~np.isnan(events)
        return kept, OutcomeValues("survival", np.column_stack([times, events > 0])[kept])
    if column.kind == "number":
        numbers = _numbers(table, column)
        return (kept := ~np.isnan(numbers)), OutcomeValues("regression", numbers[kept])
    codes = _codes(table, target)
    return (kept := ~np.isnan(codes)), OutcomeValues("classification", codes[kept])


def _numbers(table: TextTable, profile: Profile) -> Floats:
    """Return (n,) numbers of a column's rows, NaN where there is none."""
    column = table.columns[profile.name]
    return np.array([profile.values.get(text, np.nan) for text in column.texts])[column.codes]


def _codes(table: TextTable, name: str) -> Floats:
    """Return (n,) codes of a column's words, in any spelling; NaN where there is none."""
    column = table.columns[name]
    spelt = one_spelling([text for text in column.texts if text.lower() not in MISSING_MARKERS])
    ordered = in_order(spelt.values())  # those without the event come first
    codes = np.array(
        [ordered.index(spelt[text]) if text in spelt else np.nan for text in column.texts]
    )
    return codes[column.codes]


def _values(table: TextTable, profile: Profile) -> tuple[Floats, bool]:
    """Return (n,) values of a column's rows, and whether they are categories."""
    if profile.kind in ("number", "identifier") and profile.values:
        return _numbers(table, profile), False
    if profile.kind == "category":
        return _codes(table, profile.name), True
    column = table.columns[profile.name]
    is_there = np.array([text in profile.counts for text in column.texts], dtype=np.float64)
    return is_there[column.codes], True
