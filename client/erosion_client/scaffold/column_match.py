"""Matches the columns of a hospital's table with the study's, with a confidence."""

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import starmap
from typing import Literal

import numpy as np

from erosion_client.dataset.column_values import Column, Fault, UnitChange, column_parser
from erosion_client.dataset.preparation import TimeBetween
from erosion_client.dataset.single_column import is_code, to_be_asked_about
from erosion_client.scaffold.column_profile import Profile
from erosion_client.scaffold.value_words import (
    NO,
    YES,
    Spelt,
    ValueMap,
    one_spelling,
    opposite,
    plain_value,
    seems_unknown,
    value_map,
)
from erosion_client.scaffold.vocabulary import (
    BEGIN,
    BIRTH,
    END,
    SAME_WORDS,
    changes,
    header_unit,
    mentions,
    plain_name,
)
from erosion_common.settings.names import canonical
from erosion_common.tasks.features import CategoryFeature, NumberFeature
from erosion_common.tasks.inputs import TabularTask
from erosion_common.tasks.task import CodedColumn

NAME_WEIGHT = 0.6  # of the confidence; the rest depends on how well the values fit
LEAST = 0.55  # confidence of a proposal
FITTING = 0.7  # agreement required after a change of unit
CLEARLY = 0.2  # and the required gain over none
ALIKE_AS_IT_IS = 0.8  # agreement from which no change of unit is tried
SAME = 0.9  # similarity of synonymous names
SHORTEST_BEGINNING = 3  # letters
LIKE_A_VALUE = 0.7  # similarity of a name that is like one of the column's values
# Words in the names of numbers that may be the time between two dates, and of the dates.
TIMES: tuple[
    tuple[
        Literal["years_between", "days_between"], tuple[str, ...], tuple[str, ...], tuple[str, ...]
    ],
    ...,
] = (
    ("years_between", ("age", "alter", "edad"), BIRTH, (*BEGIN, *END)),
    ("days_between", ("stay", "los", "dauer", "duree", "followup", "time", "days"), BEGIN, END),
)


@dataclass(frozen=True, slots=True)
class Match:
    """A proposal for one column of the study, and what a person must decide."""

    column: str  # the study's
    local: str | None  # the data's; None: nothing seems to fit
    confidence: float = 0.0  # from 0 to 1
    values: Spelt = field(default_factory=dict)  # spellings: data's -> study's
    asked: frozenset[str] = frozenset()  # those of `values` that a person must confirm
    others: tuple[Spelt, ...] = ()  # other meanings of `values`
    unknown: tuple[str, ...] = ()  # values without a known spelling
    unit: UnitChange | None = None  # to the study's unit
    unsaid: tuple[str, ...] = ()  # values that seem to mean "not known"
    odd: tuple[str, ...] = ()  # values of a number that are not numbers
    limits: tuple[str, ...] = ()  # those beyond a limit, such as "<0.5"
    thousands: str = ""  # mark between groups of three digits
    between: TimeBetween | None = None  # dates from which it may be derived
    forms: tuple[str, ...] = ()  # their possible formats; several: only people know which


def match_columns(task: TabularTask, profiles: Sequence[Profile]) -> list[Match]:
    """Return one proposal per column of the study; each column of the data is proposed once."""
    wanted: list[Column] = [*task.features, *task.target_columns]
    # Columns of one name belong together, and thousands need not be compared with each other.
    called = {profile.name: profile for profile in profiles}
    pairs = [(column, called[column.name]) for column in wanted if column.name in called]
    same = [m for m in starmap(_match, pairs) if m.confidence >= LEAST]
    chosen = {match.column: match for match in same}
    taken = {str(match.local) for match in same}
    scored = [
        match
        for column in wanted
        if column.name not in chosen
        for profile in profiles
        if profile.name not in taken and (match := _match(column, profile)).confidence >= LEAST
    ]
    for match in sorted(scored, key=lambda m: -m.confidence):
        if match.column not in chosen and match.local not in taken:
            chosen[match.column] = match
            taken.add(str(match.local))
    return [chosen.get(column.name) or _from_dates(column, profiles) for column in wanted]


def _match(column: Column, profile: Profile) -> Match:
    names = max(_alike(column.name, profile.name), _by_its_values(column, profile.name))
    spelt = ValueMap()
    unknown: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    unit = None
    if isinstance(column, NumberFeature):
        fits, unit = _number_fit(column, profile)
    else:
        fits, spelt, unknown = _code_fit(column, profile)
        if opposite(column.name, profile.name):
            spelt = _turned(spelt, column, profile)
        words = tuple(text for text in unknown if seems_unknown(text, profile.counts))
        unknown = tuple(text for text in unknown if text not in words)
    if fits == 0 and not (names >= SAME and unknown):
        return Match(column.name, profile.name)
    confidence = NAME_WEIGHT * names + (1 - NAME_WEIGHT) * fits
    # Values that fit say little alone: many columns hold 0 and 1.
    confidence *= 1.0 if names > 0.5 else 0.5 + names
    codes = _sentinels(column, profile, unit or UnitChange())
    unsaid = tuple(dict.fromkeys((*words, *profile.unsaid, *codes)))
    return Match(
        column.name,
        profile.name,
        confidence,
        spelt.values,
        spelt.asked,
        spelt.others,
        unknown,
        unit,
        unsaid,
        profile.not_numbers,
        profile.limits if isinstance(column, NumberFeature) else (),
        profile.thousands if isinstance(column, NumberFeature) else "",
    )


def _alike(one: str, other: str) -> float:
    """Return the similarity of two names, from 0 to 1; 0.95 for known synonyms."""
    first, second = plain_name(one), plain_name(other)
    if first == second:
        return 1.0
    if any(first in words and second in words for words in SAME_WORDS):
        return 0.95
    short, long = sorted((first, second), key=len)
    if len(short) >= SHORTEST_BEGINNING and long.startswith(short):
        return 0.85  # Chol, SysBP, Creat
    return difflib.SequenceMatcher(None, first, second).ratio()


def _by_its_values(column: Column, name: str) -> float:
    """Return the similarity of a yes-no column with the name of a value, such as "death"."""
    if isinstance(column, NumberFeature):
        return 0.0
    known = column.categories if isinstance(column, CategoryFeature) else tuple(column.codes)
    like = [value for value in known if not value.isdecimal() and _alike(value, name) >= SAME]
    return LIKE_A_VALUE if len(like) == 1 and len(known) == 2 else 0.0


def _number_fit(column: NumberFeature, profile: Profile) -> tuple[float, UnitChange | None]:
    """Return how well the values fit, at best, from 0 to 1, and the change of unit for it."""
    if profile.kind != "number":
        texts = list(profile.counts)
        numbers = [column_parser(column)(text) for text in texts]
        good = [not isinstance(n, Fault) and not math.isnan(n) for n in numbers]
        return (1.0 if texts and all(good) else 0.0), None
    given = header_unit(profile.name)
    as_they_are = _agreement(column, profile, UnitChange())
    known = [
        change
        for change in changes(column.name, given, column.unit or header_unit(column.name))
        if _agreement(column, profile, change) >= max(FITTING, as_they_are + CLEARLY)
    ]
    if not known or as_they_are >= ALIKE_AS_IT_IS:
        return as_they_are, None
    best = max(known, key=lambda change: _agreement(column, profile, change))
    return _agreement(column, profile, best), best


def _agreement(column: NumberFeature, profile: Profile, unit: UnitChange) -> float:
    """Return the similarity of two distributions: share in the study's range, and middle."""
    values = profile.numbers * unit.factor + unit.offset
    inside = 1.0
    if column.range is not None:
        low, high = column.range
        inside = float(np.mean((values >= low) & (values <= high)))
    if column.typical is None or not len(values):
        return inside
    low, high = column.typical
    distance = max(low - float(np.median(values)), float(np.median(values)) - high, 0.0)
    # A median in the study's middle half agrees fully, one a width away half.
    return inside / (1.0 + distance / (high - low))


def _sentinels(column: Column, profile: Profile, unit: UnitChange) -> list[str]:
    """Return numbers that may mean "not known": 0 far from the others, 999 out of the range."""
    if not isinstance(column, NumberFeature) or profile.kind != "number":
        return []
    odd = list(to_be_asked_about(profile.values, profile.counts))
    if column.range is None:
        return odd
    low, high = column.range
    for text in profile.counts:
        value = profile.values.get(text, 0.0)
        if is_code(value) and not low <= value * unit.factor + unit.offset <= high:
            odd.append(text)
    return odd


def _from_dates(column: Column, profiles: Sequence[Profile]) -> Match:
    """Propose two dates from which an age or a length of stay may be derived."""
    nothing = Match(column.name, None)
    if not isinstance(column, NumberFeature):
        return nothing
    dates = [profile for profile in profiles if profile.date_formats]
    for kind, words, first, second in TIMES:
        if not mentions(column.name, words):
            continue
        starts = [p for p in dates if mentions(p.name, first)]
        ends = [p for p in dates if mentions(p.name, second)]
        pairs = [(one, two) for one in starts for two in ends if one is not two]
        if pairs:
            one, two = pairs[0]
            both = tuple(form for form in one.date_formats if form in two.date_formats)
            forms = both or (one.date_formats[0], two.date_formats[0])
            between = TimeBetween(kind=kind, start=one.name, end=two.name, date_format=forms[0])
            return Match(column.name, None, between=between, forms=forms)
    return nothing


def _code_fit(
    column: CategoryFeature | CodedColumn, profile: Profile
) -> tuple[float, ValueMap, tuple[str, ...]]:
    """Return the share of rows understood, the spellings that need a map, and the unknown."""
    known = column.categories if isinstance(column, CategoryFeature) else tuple(column.codes)
    parse = column_parser(column)
    if len(set(one_spelling(profile.counts).values())) > 3 * len(known) + 3:
        return 0.0, ValueMap(), ()
    understood = {text for text in profile.counts if not isinstance(parse(text), Fault)}
    told = [
        text
        for text in profile.counts
        if text in understood or not seems_unknown(text, profile.counts)
    ]
    spelt = value_map(told, known, understood)
    if not spelt.values and len(understood) < len(told):
        spelt = _yes_to(profile.name, told, known)
    unknown = [t for t in profile.counts if t not in understood and t not in spelt.values]
    rows = sum(n for text, n in profile.counts.items() if text not in unknown)
    if any(canonical(t).isdecimal() for t in unknown) and all(value.isdecimal() for value in known):
        # 1 and 2 where the study has 0 and 1: its 1 may be another.
        unknown = [t for t in profile.counts if t in unknown or canonical(t).isdecimal()]
    return rows / max(sum(profile.counts.values()), 1), spelt, tuple(unknown)


def _turned(spelt: ValueMap, column: CategoryFeature | CodedColumn, profile: Profile) -> ValueMap:
    """Map yes to no and no to yes, to be confirmed, where only the names turn the meaning."""
    known = column.categories if isinstance(column, CategoryFeature) else tuple(column.codes)
    answers = {value: plain_value(value) for value in known}
    if len(known) != 2 or not {*answers.values()} <= YES | NO:
        return spelt
    other = dict(zip(known, reversed(known), strict=True))
    meant = {text: spelt.values.get(text, canonical(text)) for text in profile.counts}
    found = {text: other[value] for text, value in meant.items() if value in other}
    return ValueMap(found, frozenset(found))


def _yes_to(column: str, texts: Sequence[str], known: Sequence[str]) -> ValueMap:
    """Map yes and no in a column with the name of one of two values: "death", "yes"."""
    named = [v for v in known if _alike(v, column) >= SAME]
    other = [v for v in known if v not in named]
    if len(named) != 1 or len(other) != 1:
        return ValueMap()
    answers = {text: plain_value(text) for text in texts}
    spelt = {
        text: named[0] if answer in YES else other[0]
        for text, answer in answers.items()
        if answer in YES | NO
    }
    is_sure = len(set(spelt.values())) == len(spelt)
    return ValueMap(spelt, frozenset(t for t in spelt if not is_sure or canonical(t).isdecimal()))
