"""Reads a column's values in one language and maps them to a study's, as proposals."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from erosion_client.dataset.column_values import DASHES, MISSING_WORDS
from erosion_client.scaffold.column_profile import Kind, Profile
from erosion_client.scaffold.vocabulary import words_in, words_of
from erosion_common.settings.names import canonical
from erosion_common.support.text import without_accents

FEWEST_MEANINGS = 2  # of a study's values that a topic has words for
Coding = Mapping[str, str]  # word -> what it means
Spelt = Mapping[str, str]  # value in the data -> value in the study


@dataclass(frozen=True, slots=True)
class ValueMap:
    """What a column's values seem to mean in the study."""

    values: Spelt = field(default_factory=dict)  # those that need a map
    asked: frozenset[str] = frozenset()  # those that a person must confirm
    others: tuple[Spelt, ...] = ()  # their other possible meanings


def plain_value(text: str) -> str:
    """Return small letters without accents and outer spaces: "Sí " is si."""
    return " ".join(without_accents(canonical(text).casefold()).split())


@cache
def codings() -> Mapping[str, Mapping[str, Coding]]:
    """Return the words by topic and language."""
    found = words_in("value_words.toml")
    return {
        topic: {
            language: {plain_value(w): meant for meant, words in coding.items() for w in words}
            for language, coding in languages.items()
        }
        for topic, languages in found.items()
    }


def words_for(topic: str, *meanings: str) -> frozenset[str]:
    """Return the words for a meaning in every language, as `plain_value` leaves them."""
    return frozenset(
        word
        for coding in codings()[topic].values()
        for word, meant in coding.items()
        if meant in meanings
    )


def seems_unknown(text: str, texts: Collection[str]) -> bool:
    """Return whether one of a column's texts is a word for "not known".

    A dash is the negative finding next to +, and next to "positive" where no other value is.
    """
    if text in DASHES:
        others = {plain_value(other) for other in texts} - DASHES
        is_positive = others & words_for("finding", "positive")
        is_sign = any(other.strip("(+)/-±") == "" and "+" in other for other in others)
        return not is_sign and not (is_positive and not others & words_for("finding", "negative"))
    return text.lower() in MISSING_WORDS


def value_map(texts: Sequence[str], known: Sequence[str], understood: Collection[str]) -> ValueMap:
    """Return the study's values (`known`) that a column's texts mean.

    A map is certain where the column can be read in one way only, keeps distinct values distinct
    and leaves what the study understands unchanged (`understood`). All else needs confirmation.
    """
    spelt = _by_spelling(texts, known, understood)
    readings, is_whole = _readings(texts, known)
    # What the study understands needs no map, unless the others contradict it.
    maps = [{**spelt, **reading} for reading in readings] or [spelt]
    maps = list({tuple(sorted(found.items())): found for found in maps}.values())
    maps.sort(key=lambda found: _doubts(found, texts, understood))
    chosen = _needed(maps[0], understood)
    if not chosen:
        turned = (_needed(found, understood) for found in maps[1:])
        return ValueMap(others=tuple(found for found in turned if len(found) == len(texts)))
    others = tuple(other for found in maps[1:] if (other := _needed(found, understood)) != chosen)
    contradicts = any(text in understood for text in chosen)
    if others or contradicts or not is_whole:
        return ValueMap(chosen, frozenset(chosen), others)
    meant = Counter(chosen.get(text, canonical(text)) for text in texts)
    # Only the hospital knows the meaning of a code such as 1, 1.0 or 01.
    asked = (t for t, v in chosen.items() if meant[v] > 1 or canonical(t).isdecimal())
    return ValueMap(chosen, frozenset(asked))


def _doubts(found: Spelt, texts: Sequence[str], understood: Collection[str]) -> tuple[int, int]:
    """Return how many texts merge with others, and how many change from the study's own."""
    values = [found.get(text, canonical(text)) for text in texts]
    changed = sum(canonical(found.get(text, text)) != canonical(text) for text in understood)
    return len(values) - len(set(values)), changed


def _needed(found: Spelt, understood: Collection[str]) -> dict[str, str]:
    return {
        text: value
        for text, value in found.items()
        if canonical(text) != canonical(value) or text not in understood
    }


def _by_spelling(
    texts: Sequence[str], known: Sequence[str], understood: Collection[str]
) -> dict[str, str]:
    """Map texts that differ from one of the study's values by case, accents or leading zeros."""
    found = {}
    for text in texts:
        if text in understood:
            continue
        plain = plain_value(text)
        same = [value for value in known if plain_value(value) == plain]
        if plain.isdecimal():
            same = [v for v in known if v.isdecimal() and int(v) == int(plain)] or same
        if len(same) == 1:
            found[text] = same[0]
    return found


def _readings(texts: Sequence[str], known: Sequence[str]) -> tuple[list[dict[str, str]], bool]:
    """Return every way to read texts as the study's values, and whether each is in one language."""
    plain = {text: plain_value(text) for text in texts}
    wanted = {value: plain_value(value) for value in known}
    whole: list[dict[str, str]] = []
    mixed: list[dict[str, str]] = []
    for languages in codings().values():
        usual = _in_any(languages)
        here, there = (_by_language(words, languages, usual) for words in (plain, wanted))
        there = [coding for coding in there if len(set(coding.values())) >= FEWEST_MEANINGS]
        found = [_composed(one, other) for one in here for other in there]
        is_usual = all(
            len(plain[text]) > 1 or meant == usual.get(plain[text])
            for coding in here
            for text, meant in coding.items()
        )
        is_whole = is_usual and all(len(coding) == len(known) for coding in there)
        (whole if is_whole else mixed).extend(reading for reading in found if reading)
    found = whole or mixed
    parts = [one for one in found if any(one.items() < other.items() for other in found)]
    return [reading for reading in found if reading not in parts], bool(whole) or not mixed


def _by_language(
    plain: Mapping[str, str], languages: Mapping[str, Coding], usual: Coding
) -> list[Coding]:
    """Return the texts' meanings in each language that knows most of them.

    A number without a meaning, such as 2 next to 1, shows that all numbers are other codes.
    """
    vocabulary = set().union(*languages.values())
    read = {text: word for text, word in plain.items() if word in vocabulary}
    if any(word.isdecimal() for word in plain.values() if word not in vocabulary):
        read = {text: word for text, word in read.items() if not word.isdecimal()}
    words = set(read.values())
    together = [known for c in languages.values() if len(known := words & c.keys()) > 1]
    if together:  # next to m and w, "u" is not the Italian "uomo"
        shared = set().union(*together)
        read = {text: word for text, word in read.items() if len(word) > 1 or word in shared}
    if not read:
        return []
    found = [coding for coding in languages.values() if coding.keys() >= set(read.values())]
    return [
        {text: coding[word] for text, word in read.items() if word in coding}
        for coding in found or [usual]
    ]


def _in_any(languages: Mapping[str, Coding]) -> Coding:
    """Return the meaning of each word in most languages; none where they disagree."""
    votes: dict[str, Counter[str]] = {}
    for coding in languages.values():
        for word, meant in coding.items():
            votes.setdefault(word, Counter())[meant] += 1
    return {
        word: counted.most_common(1)[0][0]
        for word, counted in votes.items()
        if len(counted) == 1 or counted.most_common(2)[0][1] > counted.most_common(2)[1][1]
    }


def _composed(here: Mapping[str, str], there: Mapping[str, str]) -> dict[str, str]:
    """Return the study's value with the same meaning as each text, where there is only one."""
    values: dict[str, list[str]] = {}
    for value, meant in there.items():
        values.setdefault(meant, []).append(value)
    return {text: values[m][0] for text, m in here.items() if len(values.get(m, [])) == 1}


# Test findings are not answers: next to "negative", "no" may mean that there was no test.
RESULTS = words_for("finding", "negative", "positive")
YES, NO = words_for("answer", "yes") - RESULTS, words_for("answer", "no") - RESULTS


def one_spelling(texts: Iterable[str]) -> dict[str, str]:
    """Map each text to the first of those that seem to mean the same, as a study's codes.

    Case, accents and spaces make no other category, nor do the words for yes and no where there are
    no others. Where these alone distinguish values, as those of AA, Aa and aa, each stays.
    """
    plain = {text: plain_value(text) for text in texts}
    if len(set(plain.values())) == 1:
        return {text: canonical(text) for text in plain}
    plain = _answers(plain) or plain
    first: dict[str, str] = {}
    return {text: first.setdefault(meant, canonical(text)) for text, meant in plain.items()}


def _answers(plain: Mapping[str, str]) -> dict[str, str]:
    """Return yes or no for each text, or nothing where any may mean something else.

    H and F, homme and femme, are both no, in two languages: letters are read in one.
    """
    coding = _of_letters(plain.values())
    if coding is None or not {*plain.values()} <= YES | NO:
        return {}
    found = {t: coding.get(w, "yes" if w in YES else "no") for t, w in plain.items()}
    return found if len({*found.values()}) == 2 else {}


def _of_letters(words: Iterable[str]) -> Coding | None:
    """Return the letters among words as answers, of the first language that knows them all."""
    letters = {word for word in words if len(word) == 1 and word.isalpha()}
    known = (coding for coding in codings()["answer"].values() if coding.keys() >= letters)
    return next(({word: coding[word] for word in letters} for coding in known), None)


def in_one_spelling(profile: Profile) -> Profile:
    """Return a category column with the rows of all spellings under the commonest one."""
    if profile.kind != "category":
        return profile
    counts: dict[str, int] = {}
    spelt = one_spelling(profile.counts)
    for text, chosen in spelt.items():
        counts[chosen] = counts.get(chosen, 0) + profile.counts[text]
    values = {spelt[text]: value for text, value in profile.values.items()}
    kind: Kind = "category" if len(counts) > 1 else "constant"
    return replace(profile, counts=counts, values=values, kind=kind)


_NUMBERED = re.compile(r"^\d+\s*[:=)-]\s*(?=\D)")  # "0:LIVING"
_LONG = 7  # letters of a word that may be part of another: "diseasefree"
_SAYS_NO = words_for("answer", "no") | words_for("finding", "negative") | DASHES
_SAYS_YES = words_for("answer", "yes") | words_for("finding", "positive")
_ALIVE, _DEAD = words_for("life", "alive"), words_for("life", "dead")


@dataclass(frozen=True, slots=True)
class Direction:
    """Two codes, that of the event last."""

    codes: tuple[str, str]
    is_sure: bool
    is_turned: bool = False  # from the column's name: in "survived", no is the event


def direction(name: str, codes: Sequence[str]) -> Direction:
    """Return the order of two codes, by the words, or else by the codes themselves."""
    first, second = sorted(codes)
    plain = {code: _NUMBERED.sub("", plain_value(code)) for code in (first, second)}
    if {plain[first] in _SAYS_NO, plain[second] in _SAYS_NO} == {True, False}:
        no, yes = (first, second) if plain[first] in _SAYS_NO else (second, first)
        turned, is_sure = _turns(name)
        is_dash = plain[no] in DASHES  # next to "yes" it may be missing
        is_sure = is_sure and _of_letters(plain.values()) is not None
        is_sure = is_sure and (
            "+" in plain[yes] if is_dash else plain[yes] in _SAYS_YES or plain[no] == "no"
        )
        return Direction((yes, no) if turned else (no, yes), is_sure, turned)
    without = [code for code in (first, second) if _is_without_event(plain[code])]
    if len(without) != 1 and sum(plain[code] in _DEAD for code in (first, second)) == 1:
        without = [code for code in (first, second) if plain[code] in _ALIVE]
    if len(without) == 1:
        (no,) = without
        yes = second if no == first else first
        return Direction((no, yes), _outcome_words("unsure").isdisjoint(words_of(plain[yes])))
    return Direction((first, second), is_sure=False)


def in_order(codes: Iterable[str]) -> list[str]:
    """Return several codes, those without the event first."""
    plain = {code: _NUMBERED.sub("", plain_value(code)) for code in codes}
    return sorted(
        plain,
        key=lambda code: (plain[code] not in _SAYS_NO and not _is_without_event(plain[code]), code),
    )


@cache
def _outcome_words(key: str) -> frozenset[str]:
    return frozenset(map(plain_value, words_in("outcome_words.toml")[key]))


def _is_without_event(text: str) -> bool:
    """Return whether a value means no event: "no disease", "alive", but not "not alive"."""
    words = words_of(text)
    is_well = any(word in _outcome_words("well") for word in words)
    return is_well != _negates(words)


def _negates(words: Sequence[str]) -> bool:
    if not words:
        return False
    first, second = words[0], words[1] if len(words) > 1 else ""
    has_of = second in _outcome_words("of")
    is_other = first in _outcome_words("number_of" if has_of else "with_of")
    starts_so = first in _outcome_words("negations") and not is_other
    endings = tuple(_outcome_words("endings"))
    ends_so = second != "" and (words[-1] in endings or words[-1] in _outcome_words("after"))
    is_glued = any(word.endswith(endings) and len(word) > _LONG for word in words)
    return starts_so or ends_so or is_glued or any(w.startswith("non") and w[3:] for w in words[:1])


def _turns(name: str) -> tuple[bool, bool]:
    """Return whether yes in a column of this name means no event; and whether that is sure."""
    words = [word.rstrip("0123456789") or word for word in words_of(name)]  # alive28
    is_turned = _is_without_event(" ".join(words))
    is_read = is_turned or all(  # of other alphabets few are known
        word.isascii() and not word.endswith(tuple(_outcome_words("may_end"))) for word in words
    )
    return is_turned, is_read and _outcome_words("unsure").isdisjoint(words)


def opposite(name: str, other: str) -> bool:
    """Return whether yes in one column means no in the other: "died", "survived"."""
    return _turns(name)[0] != _turns(other)[0]
