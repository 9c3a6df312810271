"""Which column of a hospital's table may be which of the study's, and how sure that is."""

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from erosion.client.dataset.column_values import Fault, feature_parser, target_parser
from erosion.client.dataset.preparation import UnitChange
from erosion.client.scaffold.column_profile import Profile
from erosion.client.scaffold.known_words import FACTORS, SAME_VALUES, SAME_WORDS
from erosion.common.settings.codes import canonical
from erosion.common.tasks.features import CategoryFeature, NumberFeature
from erosion.common.tasks.inputs import TabularTask
from erosion.common.tasks.task import CodedColumn

NAME_WEIGHT = 0.6  # of the confidence; the rest is how well the values fit
LEAST = 0.55  # confidence of a proposal
FITTING = 0.95  # share of the values that a unit factor must bring into the range
UNFIT = 0.7  # share of the values in the range from which no factor is looked for


@dataclass(frozen=True, slots=True)
class Match:
    """A proposal for one column of the study."""

    column: str  # the study's
    local: str | None  # the data's; None: nothing seems to fit
    confidence: float = 0.0  # from 0 to 1
    values: Mapping[str, str] = field(default_factory=dict)  # spellings: data's -> study's
    unknown: tuple[str, ...] = ()  # values that no spelling is known for
    factor: float | None = None  # to the study's unit

    @property
    def is_plain(self) -> bool:
        """Nothing but the name is to be written."""
        return not self.values and not self.unknown and self.factor is None


def match_columns(task: TabularTask, profiles: Sequence[Profile]) -> list[Match]:
    """One proposal for each column of the study; each column of the data is proposed once."""
    wanted: list[NumberFeature | CategoryFeature | CodedColumn] = [
        *task.features,
        *task.target_columns,
    ]
    scored = [
        match
        for column in wanted
        for profile in profiles
        if (match := _match(column, profile)).confidence >= LEAST
    ]
    chosen: dict[str, Match] = {}
    taken: set[str] = set()
    for match in sorted(scored, key=lambda m: -m.confidence):
        if match.column not in chosen and match.local not in taken:
            chosen[match.column] = match
            taken.add(str(match.local))
    return [chosen.get(column.name, Match(column.name, None)) for column in wanted]


def _match(column: NumberFeature | CategoryFeature | CodedColumn, profile: Profile) -> Match:
    names = _alike(column.name, profile.name)
    if isinstance(column, NumberFeature):
        fits, factor = _number_fit(column, profile)
        spelt: Mapping[str, str] = {}
        unknown: tuple[str, ...] = ()
    else:
        fits, spelt, unknown = _code_fit(column, profile)
        factor = None
    if fits == 0:
        return Match(column.name, profile.name)
    confidence = NAME_WEIGHT * names + (1 - NAME_WEIGHT) * fits
    # Values that fit say little by themselves: many columns hold 0 and 1.
    confidence *= 1.0 if names > 0.5 else 0.5 + names
    return Match(column.name, profile.name, confidence, spelt, unknown, factor)


def _alike(one: str, other: str) -> float:
    """How much two names are alike, from 0 to 1; 0.95 for words that are known to mean the same."""
    first, second = _plain(one), _plain(other)
    if first == second:
        return 1.0
    for words in SAME_WORDS:
        if first in words and second in words:
            return 0.95
    return difflib.SequenceMatcher(None, first, second).ratio()


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "", name.casefold())


def _number_fit(column: NumberFeature, profile: Profile) -> tuple[float, float | None]:
    """The share of values that the study takes, at best; and the unit factor that it needs."""
    if profile.kind != "number":
        texts = list(profile.counts)
        numbers = [feature_parser(column)(text) for text in texts]
        good = [not isinstance(n, Fault) and not math.isnan(n) for n in numbers]
        return (1.0 if texts and all(good) else 0.0), None
    share = _in_range(column, profile, UnitChange())
    if share >= UNFIT or column.range is None:
        return share, None
    plain = _plain(column.name)
    factors = next((f for words, f in FACTORS.items() if any(w in plain for w in words)), ())
    best = max(
        factors, key=lambda f: _in_range(column, profile, UnitChange(factor=f)), default=None
    )
    if best is not None and _in_range(column, profile, UnitChange(factor=best)) >= FITTING:
        return FITTING, best
    return share, None


def _in_range(column: NumberFeature, profile: Profile, unit: UnitChange) -> float:
    if column.range is None:
        return 1.0
    values = profile.numbers * unit.factor
    return float(np.mean((values >= column.range[0]) & (values <= column.range[1])))


def _code_fit(
    column: CategoryFeature | CodedColumn, profile: Profile
) -> tuple[float, Mapping[str, str], tuple[str, ...]]:
    """The share of rows understood, the spellings that need a map, and what is not understood."""
    known = column.categories if isinstance(column, CategoryFeature) else tuple(column.codes)
    parse = feature_parser(column) if isinstance(column, CategoryFeature) else target_parser(column)
    if len(profile.counts) > 3 * len(known) + 3:
        return 0.0, {}, ()
    spelt: dict[str, str] = {}
    unknown: list[str] = []
    understood = 0  # rows
    for text, count in profile.counts.items():
        if not isinstance(parse(text), Fault):
            understood += count
        elif (meant := _same_value(text, known)) is not None:
            spelt[text] = meant
            understood += count
        else:
            unknown.append(text)
    return understood / max(sum(profile.counts.values()), 1), spelt, tuple(unknown)


def _same_value(text: str, known: Sequence[str]) -> str | None:
    """The study's value that a spelling means; None where none or several could be meant."""
    plain = text.strip().casefold()
    alike = [value for value in known if value.casefold() == plain]
    for words in SAME_VALUES:
        if plain in words:
            alike += [value for value in known if canonical(value).casefold() in words]
    distinct = list(dict.fromkeys(alike))
    return distinct[0] if len(distinct) == 1 else None
