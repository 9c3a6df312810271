"""Columns that may be known only after the outcome: they tell it by themselves, or say so."""

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from erosion.client.dataset.missing_words import MISSING_MARKERS
from erosion.client.dataset.single_column import Outcome, suspicion
from erosion.client.dataset.text_table import TextTable
from erosion.client.scaffold.column_names import words_of
from erosion.client.scaffold.column_profile import Profile
from erosion.client.scaffold.left_out import why_no_feature
from erosion.client.scaffold.outcome_direction import in_order
from erosion.client.scaffold.spellings import one_spelling
from erosion.common.tasks.task import Floats

WORDS = Path(__file__).with_name("known_afterwards.toml")
BY_NAME = "its name says that it is known only afterwards"


def telling(
    table: TextTable, profiles: Sequence[Profile], target: str, time: str | None = None
) -> dict[str, str]:
    """Columns that may be known only after the outcome, and why that is thought.

    Also by whether they have a value at all: a cause of death, or its date, says who died. `time`:
    how long patients were followed, where `target` is whether the event happened.
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
    """Whether a column's name says so, in one of several languages."""
    said = f" {' '.join(words_of(name))} "
    wanted, unwanted = _patterns()
    return wanted.search(said) is not None and unwanted.search(said) is None


@cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    words = tomllib.loads(WORDS.read_text(encoding="utf-8"))

    def any_of(listed: Iterable[str]) -> re.Pattern[str]:
        each = (re.escape(word).replace(r"\*", "[a-z0-9]*") for word in listed)
        return re.compile(f" (?:{'|'.join(each)})(?= )")

    afterwards = [word for language in words["afterwards"].values() for word in language]
    return any_of(afterwards), any_of(words["before"]["words"])


def _outcome(
    table: TextTable, profiles: Mapping[str, Profile], target: str, time: str | None
) -> tuple[NDArray[np.bool_], Outcome]:
    """Which rows (n,) have the outcome, and what it is there."""
    column = profiles[target]
    if time is not None:
        times, events = _numbers(table, profiles[time]), _codes(table, target)
        kept = ~np.isnan(times) & ~np.isnan(events)
        return kept, Outcome("survival", np.column_stack([times, events > 0])[kept])
    if column.kind == "number":
        numbers = _numbers(table, column)
        return (kept := ~np.isnan(numbers)), Outcome("regression", numbers[kept])
    codes = _codes(table, target)
    return (kept := ~np.isnan(codes)), Outcome("classification", codes[kept])


def _numbers(table: TextTable, profile: Profile) -> Floats:
    """(n,) of a column's rows, NaN where it has no number."""
    column = table.columns[profile.name]
    return np.array([profile.values.get(text, np.nan) for text in column.texts])[column.codes]


def _codes(table: TextTable, name: str) -> Floats:
    """(n,) of a column's rows: which of its words, however spelt; NaN where none is."""
    column = table.columns[name]
    known = [text.lower() not in MISSING_MARKERS for text in column.texts]
    said = [text for text, is_known in zip(column.texts, known, strict=True) if is_known]
    spelt = one_spelling(said)
    texts = [spelt.get(text, "") for text in column.texts]
    ordered = in_order(texts)  # those without the event come first
    codes = np.array([ordered.index(text) for text in texts], dtype=np.float64)
    codes[~np.array(known, dtype=bool)] = np.nan
    return codes[column.codes]


def _values(table: TextTable, profile: Profile) -> tuple[Floats, bool]:
    """(n,) of a column's rows, and whether they are categories.

    Of dates, free text and identifiers that are no numbers it counts only whether they are there.
    """
    if profile.kind in ("number", "identifier") and profile.values:
        return _numbers(table, profile), False
    if profile.kind == "category":
        return _codes(table, profile.name), True
    column = table.columns[profile.name]
    is_there = np.array([text in profile.counts for text in column.texts], dtype=np.float64)
    return is_there[column.codes], True
