"""A round's record as news for people, and as a flat list of figures for tables and servers."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from numbers import Real
from typing import Literal, NamedTuple

from erosion_common.protocol.messages import Metrics
from erosion_common.rounds.records import RoundRecord
from erosion_server.output.words import RESULT_OF_STOPPED, printable
from erosion_server.run.result import Result

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
        text = f"skipped: {printable(record.note)}"
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

    @property
    def text(self) -> str:
        """Return the first one's, with a remark where the others differ."""
        return self.first.text + " (the first time; then with other numbers)" * self.varies


def grouped(records: Iterable[RoundRecord]) -> list[NewsGroup]:
    """Return all news of a run, each once, in the order in which they first happened."""
    rounds: dict[tuple[str, str, str, str], list[int]] = {}
    first: dict[tuple[str, str, str, str], News] = {}
    varying: set[tuple[str, str, str, str]] = set()
    for record in records:
        for news in news_of(record):
            if first.setdefault(news.pattern, news).text != news.text:
                varying.add(news.pattern)
            rounds.setdefault(news.pattern, []).append(news.round)
    return [NewsGroup(first[key], tuple(rounds[key]), key in varying) for key in first]


MEASURED = "measured"


class Figure(NamedTuple):
    """One number."""

    round: int  # that it is of; of a metric: after which the measured model is
    outcome: str  # of the round; "measured": it is of a model, and not of what a round did
    quantity: str
    hospital: str  # "" where it is of the whole round or of the user's metrics
    value: float


def figures_of(record: RoundRecord) -> Iterator[Figure]:
    """The user's metrics of the model that the round started from, which are of the round before;
    the round's seconds and number of updates; every hospital's weight after it and distance in it.
    """
    for name, value in figures_in(record.user_metrics):
        yield Figure(record.measured_after, MEASURED, name, "", value)
    of = record.round, record.outcome
    yield Figure(*of, "seconds", "", record.seconds)
    accepted = sum(entry.outcome == "accepted" for entry in record.hospitals.values())
    yield Figure(*of, "num_accepted", "", float(accepted))
    for hospital, entry in record.hospitals.items():
        if entry.weight_after is not None:
            yield Figure(*of, "weight", hospital, entry.weight_after)
        if entry.distance is not None:
            yield Figure(*of, "distance", hospital, entry.distance)


def final_figures_of(result: Result) -> Iterator[tuple[str, Figure]]:
    """Each arm's name with a metric of the model that it ended with; so for local references."""
    for arm, ended in result.arms.items():
        for name, value in figures_in(ended.metrics):
            yield arm, Figure(ended.rounds, MEASURED, name, "", value)
    for reference, metrics in result.references.items():
        for name, value in figures_in(metrics):
            yield reference, Figure(0, MEASURED, name, "", value)


def figures_in(metrics: Metrics | None) -> Iterator[tuple[str, float]]:
    """The metrics that are numbers, by name."""
    for name, value in metrics.model_dump().items() if metrics is not None else ():
        if isinstance(value, Real) and not isinstance(value, bool):
            yield name, float(value)
