"""A transport that follows a script: no network, no training, and time that passes when it says."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from erosion_common.protocol.messages import (
    Comparison,
    DescribeReply,
    EvaluateReply,
    EvaluateRequest,
    EvaluateResult,
    FinalMetrics,
    Metrics,
    StepReply,
    StepResult,
    TrainReply,
    TrainRequest,
    TrainResult,
    significance_of,
)
from erosion_common.rounds.channel import (
    Channel,
    Connection,
    Declined,
    Introduced,
    Left,
    News,
    Reply,
    Request,
    Result,
    too_late,
)
from erosion_common.rounds.context import Decisions, RunContext, Store
from erosion_common.rounds.events import (
    ArmFinished,
    ArmStarted,
    DriverEvent,
    HospitalDeclined,
    HospitalJoined,
    HospitalLeft,
    HospitalsCompared,
    RoundFinished,
    StudyBegunWithout,
    WaitsFor,
)
from erosion_common.rounds.presence import Presence
from erosion_common.rounds.records import Absence, RoundRecord, RunState
from erosion_common.rounds.selection import Curves
from erosion_common.rounds.study import StudyOutcome, run_study
from erosion_common.sealed.records import SumRecords
from erosion_common.study.study import Study

Respond = Callable[[str, TrainRequest], Result | Absence | None]


def metrics(log_loss: float = 0.5) -> Metrics:
    """A user's figures."""
    return Metrics.model_validate({"num_patients": 10, "auroc": None, "log_loss": log_loss})


def trained(name: str, request: TrainRequest, value: float = 0.1) -> TrainResult:
    """An honest update: the hospital's place in the study times `value`, everywhere."""
    assert request.parameters is not None
    place = 1 + request.study.hospitals.index(name)
    header = TrainReply(
        hospital=name,
        arm=request.arm,
        round=request.round,
        step=request.step,
        num_samples=10,
        samples_seen=10,
        seconds=0.0,
        metrics=metrics() if name == request.study.user else None,
    )
    sizes = request.study.arms[request.arm].attachment_sizes(len(request.parameters))
    delta = torch.full_like(request.parameters, value * place)
    return TrainResult(header, delta, {key: torch.ones(size) for key, size in sizes.items()})


def step_result(name: str, request: TrainRequest, **tensors: torch.Tensor) -> StepResult:
    """An answer without an update."""
    header = StepReply(
        hospital=name, arm=request.arm, round=request.round, step=request.step, seconds=0.0
    )
    return StepResult(header, tensors)


@dataclass
class Scripted:
    """Hospitals as a test wants them; what happens between rounds is in `events`, by time."""

    study: Study
    respond: Respond = trained  # None: no answer in time
    clock: float = 0.0
    script: list[tuple[float, Callable[["Scripted"], None]]] = field(default_factory=list)
    log: list[tuple[str, int, str]] = field(default_factory=list)  # hospital, round, step asked
    requests: list[tuple[str, Request]] = field(default_factory=list)
    turned_away: list[tuple[str, str]] = field(default_factory=list)
    silent: set[str] = field(default_factory=set)  # connected, without a sign of life
    _names: dict[Connection, str] = field(default_factory=dict)
    _news: list[News] = field(default_factory=list)
    _numbers: int = 0

    def join(self, *names: str, **changes: Any) -> None:
        """Sites connect under those names."""
        for name in names:
            self._numbers += 1
            self._names[self._numbers] = name
            values = {"hospital": name, "num_samples": 10, "software": "test", **changes}
            self._news.append(Introduced(self._numbers, DescribeReply.model_validate(values)))

    def leave(self, name: str, expelled: str = "") -> None:
        """A site goes."""
        for connection in [c for c, n in self._names.items() if n == name]:
            del self._names[connection]
            self._news.append(Left(connection, expelled))

    def decline(self, name: str, reason: str) -> None:
        """A site connects and will not take part."""
        self._numbers += 1
        self._news.append(Declined(self._numbers, name, reason))

    def report(self, event: News) -> None:
        """Anything else."""
        self._news.append(event)

    def at(self, seconds: float, happen: Callable[["Scripted"], None]) -> None:
        """Something happens when so much time has passed."""
        self.script.append((seconds, happen))

    def news(self) -> Iterator[News]:
        """What has happened by now."""
        self._happen()
        events, self._news = self._news, []
        yield from events

    def turn_away(self, connection: Connection, reason: str) -> None:
        """Note it."""
        self.turned_away.append((self._names.pop(connection), reason))

    def ask(self, requests: Mapping[Connection, Request], seconds: float) -> Iterator[Reply]:
        """As `respond` says; who does not answer costs the whole deadline."""
        late = []
        for connection, request in requests.items():
            name = self._names[connection]
            self.requests.append((name, request))
            if isinstance(request, EvaluateRequest):
                yield Reply(connection, _evaluated(request))
                continue
            self.log.append((name, request.round, request.step))
            content = self.respond(name, request)
            left = connection not in self._names
            if content is None and not left:
                late.append(connection)
            else:
                gone = Absence("the site left or lost its connection")
                yield Reply(connection, content or gone, left, 0.0, 100, 50)
        if late:
            self.clock += seconds
        for connection in late:
            yield too_late(connection, seconds, 100)

    def hears(self, connection: Connection) -> bool:
        """A sign of life, unless the script says otherwise."""
        return self._names.get(connection) not in self.silent

    def wait_for_change(self, seconds: float) -> None:
        """Time passes."""
        self.clock += seconds

    def now(self) -> float:
        """The script's clock."""
        return self.clock

    def _happen(self) -> None:
        due = [happen for seconds, happen in self.script if seconds <= self.clock]
        self.script = [entry for entry in self.script if entry[0] > self.clock]
        for happen in due:
            happen(self)


def _evaluated(request: EvaluateRequest) -> EvaluateResult:
    figures = FinalMetrics(**metrics().model_dump(), intervals={})
    study, comparison = request.study, None
    if study.comparison is not None:
        comparison = Comparison(
            arm=study.comparison[0],
            reference=study.comparison[1][0],
            num_patients=10,
            smallest_class=5,
            mean_difference=0.0,
            p_value=1.0,
            conclusion="no clear difference",
            level=significance_of(study),
            strict=study.evaluation.strict,
        )
    return EvaluateResult(
        EvaluateReply(
            hospital=request.study.user,
            arms=dict.fromkeys(request.parameters, figures),
            base_rate=figures,
            comparison=comparison,
            scaling=None,
            class_counts={},
        )
    )


@dataclass
class Kept(Store):
    """A store in memory; and the driver's events, as tuples."""

    decided: Decisions | None = None
    states: dict[str, RunState] = field(default_factory=dict)
    every_state: dict[tuple[str, int], RunState] = field(default_factory=dict)  # by arm and round
    records: list[RoundRecord] = field(default_factory=list)
    trials: list[RoundRecord] = field(default_factory=list)
    events: list[tuple[Any, ...]] = field(default_factory=list)
    kept_sums: dict[str, SumRecords] = field(default_factory=dict)
    folds: list[Curves] = field(default_factory=list)
    in_folds: dict[int, "Kept"] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)  # by hospital, as it joined
    parent: "Kept | None" = None  # of a fold's

    def decisions(self) -> Decisions | None:
        return self.decided

    def decide(self, study: Study, decisions: Decisions) -> None:
        self.decided = decisions

    def resume(
        self, study: Study, firsts: Mapping[str, RunState]
    ) -> tuple[Mapping[str, RunState], Sequence[RoundRecord]]:
        return {**firsts, **self.states}, list(self.records)

    def earlier(self, study: Study, arm: str, number: int, first: RunState) -> RunState | None:
        return self.every_state.get((arm, number), first if number == 0 else None)

    def keep_round(self, study: Study, state: RunState, record: RoundRecord) -> None:
        if self.parent is not None:
            self.parent.trials.append(record)
        self.records.append(record)
        self.states[record.arm] = state
        self.every_state[record.arm, record.round] = state

    def finished_folds(self) -> Sequence[Curves]:
        return list(self.folds)

    def rounds_in_folds(self) -> Sequence[RoundRecord]:
        return self.trials

    def of_fold(self, number: int) -> "Kept":
        return self.in_folds.setdefault(number, Kept(parent=self))

    def keep_fold(self, curves: Curves) -> None:
        self.folds.append(curves)

    def sums(self, arm: str) -> SumRecords:
        return self.kept_sums.setdefault(arm, SumRecords())

    def notify(self, event: DriverEvent) -> None:
        match event:
            case HospitalJoined(hospital, _, missing, software):
                self.events.append(("joined", hospital, list(missing)))
                self.versions[hospital] = software
            case HospitalDeclined(hospital, reason):
                self.events.append(("declined", hospital, reason))
            case HospitalLeft(hospital):
                self.events.append(("left", hospital))
            case WaitsFor(hospitals):
                self.events.append(("waits_for", *hospitals))
            case StudyBegunWithout(absent):
                self.events.append(("begun_without", dict(absent)))
            case HospitalsCompared(found):
                self.data_check = found
            case ArmStarted(arm, rounds):
                self.events.append(("arm_started", arm, rounds))
            case RoundFinished(record):
                self.events.append(("round", record.arm, record.round))
            case ArmFinished(arm):
                self.events.append(("arm_finished", arm))


def context(
    channel: Channel, study: Study, kept: Kept, *, start_with_quorum: bool = False, **changes: Any
) -> RunContext:
    """A run over `channel`; `changes` to its context."""
    presence = Presence(
        study,
        channel,
        kept.notify,
        longest_wait_seconds=study.federation.longest_wait_seconds,
        start_with_quorum=start_with_quorum,
        remedy=changes.get("remedy", ""),
    )
    known = {"store": kept, "emit": kept.notify, "presence": presence, **changes}
    return RunContext(study=study, channel=channel, **known)


def study_run(transport: Scripted, kept: Kept, **changes: Any) -> StudyOutcome:
    """The driver over a script."""
    return run_study(context(transport, transport.study, kept, **changes))
