"""Tells which of two outcomes is the event, by their words and the column's name."""

import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from erosion.client.dataset.missing_words import DASHES
from erosion.client.scaffold.column_names import words_of
from erosion.client.scaffold.value_words import plain_value, words_for

FILE = Path(__file__).with_name("outcome_words.toml")
NUMBERED = re.compile(r"^\d+\s*[:=)-]\s*(?=\D)")  # "0:LIVING"
LONG = 7  # letters of a word that another one may be part of: "diseasefree"
NO = words_for("answer", "no") | words_for("finding", "negative") | DASHES
YES = words_for("answer", "yes") | words_for("finding", "positive")


@dataclass(frozen=True, slots=True)
class Direction:
    """Two codes, that of the event last."""

    codes: tuple[str, str]
    is_sure: bool
    is_turned: bool = False  # by the column's name: in "survived", no is the event


def direction(name: str, codes: Sequence[str]) -> Direction:
    """The order of two codes; where the words do not tell it, that of the codes themselves."""
    first, second = sorted(codes)
    plain = {code: NUMBERED.sub("", plain_value(code)) for code in (first, second)}
    if {plain[first] in NO, plain[second] in NO} == {True, False}:
        no, yes = (first, second) if plain[first] in NO else (second, first)
        turned, is_sure = _turns(name)
        is_dash = plain[no] == "-"  # next to "yes" it may be missing
        is_sure = is_sure and (
            "+" in plain[yes] if is_dash else plain[yes] in YES or plain[no] == "no"
        )
        return Direction((yes, no) if turned else (no, yes), is_sure, turned)
    without = [code for code in (first, second) if _is_without_event(plain[code])]
    if len(without) == 1:
        (no,) = without
        yes = second if no == first else first
        return Direction((no, yes), not any(w in _words("unsure") for w in words_of(plain[yes])))
    return Direction((first, second), is_sure=False)


def in_order(codes: Iterable[str]) -> list[str]:
    """Several codes, those that say that nothing happened first."""
    plain = {code: NUMBERED.sub("", plain_value(code)) for code in codes}
    return sorted(
        plain, key=lambda code: (plain[code] not in NO and not _is_without_event(plain[code]), code)
    )


@cache
def _words(key: str) -> frozenset[str]:
    found = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return frozenset(found[key])


def _is_without_event(text: str) -> bool:
    """Whether a value says that nothing happened: "no disease", "alive", but not "not alive"."""
    words = words_of(text)
    is_well = any(word in _words("well") for word in words)
    return is_well != _negates(words)


def _negates(words: Sequence[str]) -> bool:
    if not words:
        return False
    first, second = words[0], words[1] if len(words) > 1 else ""
    has_of = second in _words("of")
    starts_so = first in _words("negations") and (first in _words("with_of")) == has_of
    endings = tuple(_words("endings"))
    ends_so = second != "" and words[-1] in endings
    is_glued = any(word.endswith(endings) and len(word) > LONG for word in words)
    return starts_so or ends_so or is_glued or any(w.startswith("non") and w[3:] for w in words[:1])


def _turns(name: str) -> tuple[bool, bool]:
    """Whether yes in a column of this name means that nothing happened; and whether that is sure.

    "case_no" is a number, and "event_free_survival" may be either.
    """
    words = words_of(name)
    is_turned = _is_without_event(" ".join(words))
    return is_turned, not any(word in _words("unsure") for word in words)
