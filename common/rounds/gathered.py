"""What comes of an exchange, and of a round's exchanges, while they go on."""

from dataclasses import dataclass, field, replace
from typing import Any

from erosion.common.aggregation.cohort import HospitalName, Update
from erosion.common.algorithms.base import SiteAnswer
from erosion.common.protocol.messages import Metrics
from erosion.common.rounds.lateness import too_slow
from erosion.common.rounds.records import Absence, Answer, ExchangeRecord, Rejection, StepRecord
from erosion.common.rounds.undoing import Lengths


@dataclass(slots=True)
class Taken:
    """What came of one exchange, while it goes on."""

    answers: dict[HospitalName, Answer]
    replies: dict[HospitalName, ExchangeRecord] = field(default_factory=dict)  # outcome left open
    metrics: Metrics | None = None  # the user's
    own_loss: float | None = None  # the user's, of what it received, on its training part
    left: set[HospitalName] = field(default_factory=set)  # whose connection broke meanwhile
    lengths: dict[HospitalName, Lengths] = field(default_factory=dict)  # of what they brought


@dataclass(slots=True)
class Gathered:
    """What came of a round's exchanges so far."""

    metrics: Metrics | None = None  # the user's, and its loss: the last that it sent
    own_loss: float | None = None
    steps: list[StepRecord] = field(default_factory=list)
    late: set[HospitalName] = field(default_factory=set)  # in any exchange
    heard: set[HospitalName] = field(default_factory=set)  # in any exchange
    slow: set[HospitalName] = field(default_factory=set)  # in any exchange, though in time
    lengths: dict[HospitalName, Lengths] = field(default_factory=dict)  # of what is used

    def add(self, step: str, seconds: float, taken: Taken, deadline: float) -> None:
        """Another exchange, which lasted so long, of the `deadline` in seconds that it had."""
        self.metrics = taken.metrics or self.metrics
        self.own_loss = self.own_loss if taken.own_loss is None else taken.own_loss
        self.steps.append(StepRecord(step, seconds, _entries(taken)))
        self.late |= {n for n, a in taken.answers.items() if isinstance(a, Absence) and a.late}
        self.heard |= {n for n, a in taken.answers.items() if not isinstance(a, Absence)}
        times = {
            name: reply.seconds
            for name, reply in taken.replies.items()
            if reply.seconds is not None and reply.bytes_received is not None  # over a network
        }
        self.slow |= too_slow({n: times[n] for n in times.keys() & self.heard}, deadline)
        for name, brought in taken.lengths.items():
            if isinstance(taken.answers[name], Update | SiteAnswer):
                self.lengths[name] = {**self.lengths.get(name, {}), **brought}

    def sums(self, name: HospitalName) -> dict[str, Any]:
        """A hospital's seconds and bytes over the exchanges; None where nothing is known."""
        entries = [step.hospitals[name] for step in self.steps if name in step.hospitals]
        sums: dict[str, Any] = {}
        for figure in ("site_seconds", "bytes_received", "bytes_sent"):
            known = [value for e in entries if (value := getattr(e, figure)) is not None]
            sums[figure] = sum(known) if known else None
        return sums


def _entries(taken: Taken) -> dict[HospitalName, ExchangeRecord]:
    """What each hospital did in the exchange."""
    entries = {}
    for name, answer in taken.answers.items():
        entry = taken.replies.get(name, ExchangeRecord("absent"))
        match answer:
            case Rejection(reason):
                entry = replace(entry, outcome="rejected", reason=reason)
            case Absence(reason):
                entry = replace(entry, outcome="absent", reason=reason)
        entries[name] = entry
    return entries
