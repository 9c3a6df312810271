"""Spellings of one category: yes, Yes and YES are the same to people, and so are y and 1."""

from collections.abc import Iterable
from dataclasses import replace

from erosion.client.scaffold.column_profile import Profile
from erosion.client.scaffold.value_words import plain_value, words_for
from erosion.common.settings.names import canonical

# What tests find is no answer: next to "negative", "no" may mean that none was made.
RESULTS = words_for("finding", "negative", "positive")
YES, NO = words_for("answer", "yes") - RESULTS, words_for("answer", "no") - RESULTS


def one_spelling(texts: Iterable[str]) -> dict[str, str]:
    """Each text with the first of those that seem to mean the same, as codes of a study.

    Case, accents and spaces make no other category, nor do the words for yes and no where there
    are no others. Where they alone tell values apart, as those of AA, Aa and aa, each stays.
    """
    plain = {text: plain_value(text) for text in texts}
    if len(set(plain.values())) == 1:
        return {text: canonical(text) for text in plain}
    if all(text in YES | NO for text in plain.values()):
        plain = {text: "yes" if answer in YES else "no" for text, answer in plain.items()}
    first: dict[str, str] = {}
    return {text: first.setdefault(meant, canonical(text)) for text, meant in plain.items()}


def in_one_spelling(profile: Profile) -> Profile:
    """A column of categories with the rows of all spellings under the commonest one."""
    if profile.kind != "category":
        return profile
    counts: dict[str, int] = {}
    for text, chosen in one_spelling(profile.counts).items():
        counts[chosen] = counts.get(chosen, 0) + profile.counts[text]
    return replace(profile, counts=counts, kind="category" if len(counts) > 1 else "constant")


def other_spellings(profile: Profile) -> dict[str, list[str]]:
    """Of a column of categories, the codes with those that are taken for them, if there are any."""
    found: dict[str, list[str]] = {}
    if profile.kind == "category":
        for text, chosen in one_spelling(profile.counts).items():
            if canonical(text) != chosen:
                found.setdefault(chosen, []).append(text)
    return found
