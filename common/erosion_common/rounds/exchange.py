"""A round under way: exchanges, each of which asks hospitals at once and screens the answers."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from erosion_common.aggregation.cohort import HospitalName, Update
from erosion_common.aggregation.vectors import norm
from erosion_common.algorithms.base import Ask, ExpectedReply, RoundStart, SiteAnswer
from erosion_common.algorithms.equal_steps import lengthened_by
from erosion_common.protocol.compression import compress
from erosion_common.protocol.messages import Metrics, Scaling, TrainRequest, TrainResult
from erosion_common.rounds.arm import Arm, Lengths, lengths_of
from erosion_common.rounds.bounds import most_reply_bytes
from erosion_common.rounds.channel import Connection, Reply
from erosion_common.rounds.context import RunContext
from erosion_common.rounds.evaluation import problem_with_metrics
from erosion_common.rounds.presence import too_slow
from erosion_common.rounds.records import (
    Absence,
    Answer,
    ExchangeRecord,
    Rejection,
    RoundRecord,
    RunState,
    StepRecord,
)
from erosion_common.rounds.round import Round
from erosion_common.rounds.screening import (
    ITSELF,
    Expected,
    reject_outsized,
    sample_cap,
    screen,
    seen_cap,
    steps_cap,
)
from erosion_common.study.study import Study
from erosion_common.support.text import printable


class OpenRound:
    """`requests` and `take` are one exchange, in turn until `is_over`; `close` moves the arm on."""

    def __init__(self, ctx: RunContext, arm: Arm) -> None:
        """Waits for the user and a quorum. Raises RunError."""
        self._ctx, self._arm = ctx, arm
        study, presence = ctx.study, ctx.presence
        wanted, spare = arm.wanted(study), len(study.hospitals) - study.federation.quorum
        enough = max(1, len(wanted) - spare)
        presence.wait_for(wanted, enough)
        self._members, self._started_at = dict(presence.members), ctx.channel.now()
        present = [name for name in wanted if name in self._members]
        self._paused = arm.paused(study.user, present, enough)
        self._round = Round(
            arm.state,
            arm.method,
            RoundStart(
                arm.state.round + 1,
                study.user,
                tuple(name for name in present if name not in self._paused),
                arm.state.params,
            ),
            arm=arm.name,
            wanted=wanted,
            spare=spare,
            cohort_of=ctx.updates.cohort_of,
        )
        self.seconds = study.federation.round_deadline_seconds  # that an exchange may take
        self._undone: tuple[RunState, RoundRecord] | None = None
        self._steps: list[StepRecord] = []
        self._metrics: Metrics | None = None  # the user's: the last that it sent
        self._own_loss: float | None = None  # the user's, of what it received
        self._late: set[HospitalName] = set()  # in any exchange
        self._heard: set[HospitalName] = set()  # in any exchange
        self._slow: set[HospitalName] = set()  # in any exchange, though in time
        self._lengths: dict[HospitalName, Lengths] = {}  # of what is used

    @property
    def is_over(self) -> bool:
        """Returns True once the method asks no more."""
        return self._round.request is None

    def requests(self) -> dict[Connection, TrainRequest]:
        """Returns what the next exchange asks of those that are here."""
        presence, asked = self._ctx.presence, self._round.asked
        presence.refresh()
        here = [n for n in asked if n in presence.members and n not in self._paused]
        self._answers: dict[HospitalName, Answer] = {
            name: self._paused.get(name) or Absence(presence.why_away(name))
            for name in asked
            if name not in here
        }
        self._replies: dict[HospitalName, ExchangeRecord] = {}  # outcome still open
        self._sent: dict[HospitalName, Lengths] = {}  # what they sent in this exchange
        self._left: set[HospitalName] = set()  # disconnected meanwhile
        self._asked_at = self._ctx.channel.now()
        return self._requests(here)

    def take(self, replies: Iterable[Reply]) -> None:
        """Screens the replies, and asks once more who disconnected; aggregates after the last."""
        request, user, arm = self._round.request, self._ctx.study.user, self._arm
        assert request is not None
        self._take_all(replies)
        if again := self._wait_for_those_who_left():
            self._take_all(self._ctx.channel.ask(self._requests(again), self.seconds))
        self._reject_outsized(request)
        for name, answer in self._answers.items():
            if isinstance(answer, Absence):
                if answer.over:
                    arm.over[name] = answer.reason
                if answer.late:
                    self._late.add(name)
            else:
                self._heard.add(name)
                if not isinstance(answer, Rejection) and name in self._sent:
                    self._lengths[name] = {**self._lengths.get(name, {}), **self._sent[name]}
        times = {
            name: reply.seconds
            for name, reply in self._replies.items()
            if name in self._heard
            and reply.seconds is not None
            and reply.bytes_received is not None
        }  # over a network
        self._slow |= too_slow(times, self.seconds)
        self._steps.append(self._record(request))
        self._undone = self._undone or arm.undo(self._ctx.study, self._own_loss, self._answers)
        if request.baseline is not None:  # counts as the user's: never an outlier
            baseline = {self._array(request): request.baseline}
            self._lengths[user] = {**baseline, **self._lengths.get(user, {})}
        self._round.answer(self._answers)

    def close(self) -> RoundRecord:
        """Moves the arm on, and returns what happened."""
        arm, members = self._arm, self._members
        arm.back_off.round_ended(arm.state.round + 1, self._late, self._heard, self._slow)
        after, record = self._undone or self._round.outcome()
        arm.advance(
            self._ctx.study, self._ctx.updates, after, record, self._lengths, self._own_loss
        )
        hospitals = {
            name: replace(
                entry,
                **self._sums(name),
                software=members[name].software if name in members else None,
                described_samples=members[name].num_samples if name in members else None,
            )
            for name, entry in record.hospitals.items()
        }
        return replace(
            record,
            hospitals=hospitals,
            user_metrics=self._metrics,
            seconds=self._ctx.channel.now() - self._started_at,
            steps=tuple(self._steps) if len(self._steps) > 1 else (),
        )

    def _requests(self, names: Sequence[HospitalName]) -> dict[Connection, TrainRequest]:
        ctx, members, request = self._ctx, self._ctx.presence.members, self._round.request
        assert request is not None
        self._names = {members[name].connection: name for name in names}
        self._described = {
            name: members[name].num_samples for name in ctx.study.hospitals if name in members
        }
        requests = train_requests(
            ctx.study,
            self._arm.name,
            self._arm.state,
            request,
            names,
            exchange=self._round.number,
            scaling=ctx.scaling,
            run=ctx.run,
        )
        return {connection: requests[name] for connection, name in self._names.items()}

    def _take_all(self, replies: Iterable[Reply]) -> None:
        for reply in replies:
            if (name := self._names.get(reply.connection)) is not None:
                self._take(name, reply)
            del reply  # large; what is used of it is in the answer

    def _take(self, name: HospitalName, reply: Reply) -> None:
        content, study, request = reply.content, self._ctx.study, self._round.request
        assert request is not None
        site_seconds = None
        if isinstance(content, Rejection | Absence):
            answer: Answer = content
        else:
            answer = screen(content, name, self._expected(name, request))
            site_seconds = getattr(content.header, "seconds", None)
        (self._left.add if reply.left else self._left.discard)(name)
        if name == study.user and isinstance(content, TrainResult):
            metrics = content.header.metrics
            if metrics and (wrong := problem_with_metrics(metrics, study.task)):
                answer, metrics = Rejection(wrong), None
            self._metrics = metrics or self._metrics
            if content.header.own_loss is not None:
                self._own_loss = content.header.own_loss
        match answer:
            case Update():
                self._sent[name] = lengths_of(answer)
                answer = self._ctx.updates.keep(answer)
            case SiteAnswer():
                if answer.norm is not None:
                    self._sent[name] = {self._array(request): answer.norm}
                if request.as_it_comes:
                    answer = request.as_it_comes(name, answer)
            case _:  # a site's own words may be megabytes
                answer = replace(answer, reason=printable(answer.reason) or "no reason given")
        self._answers[name] = answer
        self._replies[name] = ExchangeRecord(
            "accepted",
            seconds=reply.seconds,
            site_seconds=site_seconds,
            bytes_received=reply.bytes_received,
            bytes_sent=reply.bytes_sent,
        )

    def _wait_for_those_who_left(self) -> list[HospitalName]:
        """Waits once: a site that disconnects whenever it is asked must not block the round."""
        user, left = self._ctx.study.user, self._left
        enough = self._round.needed(self._answers)
        given = {n for n, a in self._answers.items() if isinstance(a, Update | SiteAnswer)}
        if not enough or user not in given | left or len(given | left) < enough:
            return []
        names = [name for name in self._round.asked if name in left or name == user]
        self._ctx.presence.wait_for(names, enough - len(given - {user}))
        return [name for name in names if name in left and self._ctx.presence.is_here(name)]

    def _reject_outsized(self, request: Ask) -> None:
        study, params = self._ctx.study, self._arm.state.params
        updates = {name: a for name, a in self._answers.items() if isinstance(a, Update)}
        steps = study.arms[self._arm.name].equal_steps(study.build_context)
        factors = lengthened_by(updates, study.user, steps)  # by how much the method does that
        for name, factor in factors.items():
            sent = self._sent[name]
            self._sent[name] = {**sent, ITSELF: factor * sent[ITSELF]}
        baseline = norm(params) if request.baseline is None else request.baseline
        self._answers = reject_outsized(
            self._answers, study.user, baseline, len(params), study.longest_noise, factors
        )

    def _expected(self, hospital: HospitalName, request: Ask) -> Expected:
        study, name, described = self._ctx.study, self._arm.name, self._described
        dim, patients = len(self._arm.state.params), described[hospital]
        is_user, settings = hospital == study.user, study.arms[name]
        most_seen = (  # with privacy its one step is over all of them
            patients if study.privacy else seen_cap(study.training, patients, settings.trainings)
        )
        return Expected(
            name,
            self._arm.state.round + 1,
            dim,
            request.step,
            reply_spec(study, name, request.expects, dim, by_user=is_user),
            study.federation.max_update_norm,
            sealed=request.expects.sealed and not is_user,
            # In a trial the user trains without a fold of the patients that it described.
            num_samples=None if study.fold is not None else patients,
            most_samples=None if is_user else sample_cap(described, hospital),
            most_seen=None if is_user else most_seen,
            most_steps=steps_cap(study, patients),
        )

    def _array(self, request: Ask) -> str:
        """Names what an exchange without updates measures: a step may be asked for twice."""
        return f"{request.step} {self._round.number}"

    def _record(self, request: Ask) -> StepRecord:
        entries = {}
        for name, answer in self._answers.items():
            entry = self._replies.get(name, ExchangeRecord("absent"))
            if isinstance(answer, Rejection):
                entry = replace(entry, outcome="rejected", reason=answer.reason)
            elif isinstance(answer, Absence):
                entry = replace(entry, outcome="absent", reason=answer.reason)
            entries[name] = entry
        return StepRecord(request.step, self._ctx.channel.now() - self._asked_at, entries)

    def _sums(self, name: HospitalName) -> dict[str, Any]:
        entries = [step.hospitals[name] for step in self._steps if name in step.hospitals]
        sums: dict[str, Any] = {}
        for figure in ("site_seconds", "bytes_received", "bytes_sent"):
            known = [value for e in entries if (value := getattr(e, figure)) is not None]
            sums[figure] = sum(known) if known else None
        return sums


def train_requests(
    study: Study,
    arm: str,
    state: RunState,
    ask: Ask,
    names: Iterable[HospitalName],
    *,
    exchange: int = 1,
    scaling: Scaling | None = None,
    run: str = "",
) -> dict[HospitalName, TrainRequest]:
    """Returns a request for each hospital: one object wherever they are equal."""
    dim, parameters, packed = len(state.params), None, None
    if ask.sends_parameters:  # as the sites will have them, in a simulation too
        parameters, packed = compress(state.params, study.federation.compression)
    spec = reply_spec(study, arm, ask.expects, dim, by_user=True)
    to_all = TrainRequest(
        study=study,
        arm=arm,
        round=state.round + 1,
        parameters=parameters,
        packed=packed,
        scaling=scaling,
        run=run,
        enclosed=ask.to_all.tensors,
        step=ask.step,
        exchange=exchange,
        wants_update=ask.expects.update,
        values=ask.to_all.values,
        most_reply_bytes=most_reply_bytes(spec, dim),
    )
    return {
        name: to_all
        if (own := ask.to_each.get(name)) is None
        else replace(
            to_all,
            enclosed={**to_all.enclosed, **own.tensors},
            values={**to_all.values, **own.values},
        )
        for name in names
    }


def reply_spec(
    study: Study, arm: str, expects: ExpectedReply, dim: int, *, by_user: bool
) -> ExpectedReply:
    """Returns what an answer must bring, including what the arm's method attaches to updates."""
    if not expects.update:
        return expects
    settings = study.arms[arm]
    own = settings.own_attachments(len(study.hospitals)) if by_user else {}
    return replace(
        expects,
        tensors={**settings.attachment_specs(dim), **expects.tensors},
        optional={**own, **expects.optional},
    )
