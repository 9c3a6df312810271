"""Columns that tell the outcome by themselves: mostly such as are known only afterwards."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from erosion.client.dataset.missing_words import MISSING_MARKERS
from erosion.client.dataset.text_table import TextColumn, TextTable
from erosion.client.scaffold.column_profile import Profile
from erosion.client.scaffold.spellings import one_spelling

FEWEST = 10  # patients outside the commonest class, to judge by
MOST_WRONG = 0.05  # of those, by the column alone
LEAST_FOLLOWING = 0.98  # rank correlation with a number, from which a column tells it
FEWEST_FOLLOWING = 20  # patients with both


def telling(table: TextTable, profiles: Sequence[Profile], target: str) -> list[str]:
    """The columns by which alone nearly every patient's class is told, or the number that it is.

    Also by whether they have a value at all: a cause of death, or its date, says who died.
    """
    outcome = next(profile for profile in profiles if profile.name == target)
    others = [profile for profile in profiles if profile.name != target]
    if outcome.kind == "category":
        return _telling_class(table, others, target)
    numbers = _numbers(table, outcome)
    return [
        profile.name
        for profile in others
        if outcome.kind == profile.kind == "number"
        and _rank_correlation(_numbers(table, profile), numbers) >= LEAST_FOLLOWING
    ]


def _numbers(table: TextTable, profile: Profile) -> NDArray[np.float64]:
    """(n,) of a column's rows, NaN where it has no number."""
    column = table.columns[profile.name]
    return np.array([profile.values.get(text, np.nan) for text in column.texts])[column.codes]


def _rank_correlation(ones: NDArray[np.float64], others: NDArray[np.float64]) -> float:
    """From 0 to 1, whichever way it goes; 0 where too few have both, or all have the same."""
    both = ~np.isnan(ones) & ~np.isnan(others)
    ranks = [rankdata(values[both]) for values in (ones, others)]
    if both.sum() < FEWEST_FOLLOWING or any(np.ptp(of_column) == 0 for of_column in ranks):
        return 0.0
    return float(abs(np.corrcoef(*ranks)[0, 1]))


def _telling_class(table: TextTable, profiles: Sequence[Profile], target: str) -> list[str]:
    raw = table.columns[target].texts
    known = np.array([text.lower() not in MISSING_MARKERS for text in raw])
    spelt = one_spelling(text for text, is_known in zip(raw, known, strict=True) if is_known)
    texts = [spelt.get(text, "") for text in raw]
    codes = np.unique(texts, return_inverse=True)[1][table.columns[target].codes]
    kept = known[table.columns[target].codes]
    is_other = codes != np.bincount(codes[kept]).argmax()
    num_others = int(is_other[kept].sum())
    if num_others < FEWEST:
        return []
    return [
        profile.name
        for profile in profiles
        if _wrong(profile, table.columns[profile.name], is_other, kept) <= MOST_WRONG * num_others
    ]


def _wrong(
    profile: Profile, column: TextColumn, is_other: NDArray[np.bool_], kept: NDArray[np.bool_]
) -> int:
    """Patients whom a rule by this column alone takes for the wrong side.

    The rule may name a side for each category, for values below and above one number, and for
    missing values. Of dates and free text it knows only whether they are there.
    """
    num_texts = len(column.texts)
    others = np.bincount(column.codes[kept & is_other], minlength=num_texts)
    rest = np.bincount(column.codes[kept & ~is_other], minlength=num_texts)
    if profile.kind == "category":
        has_value = np.array([text in profile.counts for text in column.texts])
        wrong = int(np.minimum(others, rest)[has_value].sum())
    elif profile.kind != "number":
        has_value = np.array([text in profile.counts for text in column.texts])
        wrong = int(min(others[has_value].sum(), rest[has_value].sum()))
    else:
        has_value = np.array([text in profile.values for text in column.texts])
        by_size = sorted(
            np.flatnonzero(has_value).tolist(), key=lambda i: profile.values[column.texts[i]]
        )
        above = np.cumsum([0, *others[by_size]]) - np.cumsum([0, *rest[by_size]])
        # Below a cut the rest and above it the others, or the other way round.
        wrong = int(min((above + rest[by_size].sum()).min(), (others[by_size].sum() - above).min()))
    return wrong + int(min(others[~has_value].sum(), rest[~has_value].sum()))
