"""The events in a round's record that a person should hear of."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from erosion.common.rounds.records import RoundRecord
from erosion.server.output.plain_text import printable

RESULT_OF_STOPPED = "the model reached there is the arm's result"

Kind = Literal["skipped", "stopped", "note", "absent", "rejected", "out"]


@dataclass(frozen=True, slots=True)
class News:
    """Something out of the ordinary in one round."""

    arm: str
    round: int
    kind: Kind
    hospital: str  # "" where it concerns the whole round
    text: str  # safe to show on a terminal; still to be escaped in HTML

    @property
    def pattern(self) -> tuple[str, str, str, str]:
        """The same for news that differs in numbers only ("round 3, expected 4")."""
        return self.arm, self.kind, self.hospital, re.sub(r"\d+", "#", self.text)


def news_of(record: RoundRecord) -> Iterator[News]:
    """The news of one round, that of the whole round first."""
    if record.outcome == "skipped":
        text = f"round skipped: {printable(record.note)}"
        yield News(record.arm, record.round, "skipped", "", text)
    elif record.outcome == "stopped":
        text = f"stopped: {printable(record.note)}; {RESULT_OF_STOPPED}"
        yield News(record.arm, record.round, "stopped", "", text)
    elif record.note:
        note = printable(record.note, at_most=1000)  # the method's own words: a finding
        yield News(record.arm, record.round, "note", "", note)
    for hospital, entry in record.hospitals.items():
        name = printable(hospital, at_most=48)
        if entry.outcome in ("absent", "rejected"):
            kind: Kind = "absent" if entry.outcome == "absent" else "rejected"
            text = f"{kind}: {printable(entry.reason)}"
            yield News(record.arm, record.round, kind, name, text)
        elif entry.weight_after == 0.0 and entry.weight_before != 0.0:
            text = "out: its weight fell to 0"
            yield News(record.arm, record.round, "out", name, text)


@dataclass(frozen=True, slots=True)
class NewsGroup:
    """The same news in several rounds."""

    first: News
    rounds: tuple[int, ...]  # ascending
    varies: bool  # whether the numbers in the text differed from round to round


def grouped(records: Iterable[RoundRecord]) -> list[NewsGroup]:
    """All news of a run, each told once, in the order in which they first happened."""
    rounds: dict[tuple[str, str, str, str], list[int]] = {}
    first: dict[tuple[str, str, str, str], News] = {}
    varying: set[tuple[str, str, str, str]] = set()
    for record in records:
        for news in news_of(record):
            if first.setdefault(news.pattern, news).text != news.text:
                varying.add(news.pattern)
            rounds.setdefault(news.pattern, []).append(news.round)
    return [NewsGroup(first[key], tuple(rounds[key]), key in varying) for key in first]
