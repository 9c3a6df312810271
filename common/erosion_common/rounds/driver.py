"""An arm's rounds. Read it from top to bottom.

run_arm     round after round: run, keep, emit, until it is over or hopeless
run_round   who is here and quorum -> ask -> screen -> undo or aggregate -> record
OpenRound   the same in parts, for Flower's callbacks
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from erosion_common.aggregation.cohort import HospitalName, Update
from erosion_common.aggregation.vectors import norm
from erosion_common.algorithms.base import Ask, RoundStart, SiteAnswer
from erosion_common.algorithms.equal_steps import lengthened_by
from erosion_common.errors import DivergedError, HopelessError, RunError
from erosion_common.protocol.compression import compress
from erosion_common.protocol.messages import Metrics, TrainRequest, TrainResult
from erosion_common.rounds.arm import Arm, Lengths
from erosion_common.rounds.bounds import most_reply_bytes
from erosion_common.rounds.channel import Connection, Reply
from erosion_common.rounds.context import RunContext
from erosion_common.rounds.evaluation import problem_with_metrics
from erosion_common.rounds.events import RoundFinished
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
from erosion_common.rounds.screening import ITSELF, expected, reject_outsized, reply_spec, screen
from erosion_common.support.logs import about
from erosion_common.support.text import printable

SUMMED = ("site_seconds", "bytes_received", "bytes_sent")  # over a round's exchanges


def run_arm(
    ctx: RunContext,
    arm: Arm,
    num_rounds: int,
    curve: Sequence[Metrics | None] = (),
    shown_as: Callable[[RoundRecord], RoundRecord] = lambda record: record,
) -> None:
    """Runs the rest of `num_rounds`; `curve`: the user's cross-fitted metrics. Raises RunError."""
    while not arm.is_over(num_rounds):
        with about(arm=arm.name, round=arm.state.round + 1):
            record = (ctx.run_round or run_round)(ctx, arm)
        if record.round <= len(curve):
            record = replace(record, user_metrics=curve[record.round - 1])
        ctx.store.keep_round(ctx.study, arm.state, record)
        arm.records.append(record)
        ctx.emit(RoundFinished(shown_as(record), is_trial=ctx.is_trial))
        _raise_if_hopeless(ctx, arm, num_rounds)


def check_has_model(arm: Arm, where: str = "") -> None:
    """Raises HopelessError where every round of a finished arm was skipped or undone."""
    undone = {record.undoes for record in arm.records}
    if all(record.outcome == "skipped" or record.round in undone for record in arm.records):
        raise HopelessError(
            f"Every round of {arm.name} was skipped or undone{where}, so it has no model; the last"
            f" because {arm.records[-1].note}",
            remedy="Put that right, then begin a new run.",
        )


def run_round(ctx: RunContext, arm: Arm) -> RoundRecord:
    """Runs the next round and moves `arm` on. Raises RunError."""
    round_ = OpenRound(ctx, arm)
    while not round_.is_over:
        round_.take(ctx.channel.ask(round_.requests(), round_.seconds))
    return round_.close()


class OpenRound:
    """A round under way: `requests` and `take` are one exchange; `close` moves the arm on."""

    def __init__(self, ctx: RunContext, arm: Arm) -> None:
        """Waits for the user and a quorum. Raises RunError."""
        self._ctx, self._arm = ctx, arm
        study, presence, state = ctx.study, ctx.presence, arm.state
        wanted, spare = arm.wanted(study), len(study.hospitals) - study.federation.quorum
        enough = max(1, len(wanted) - spare)
        presence.wait_for(wanted, enough)
        self._members, self._started_at = dict(presence.members), ctx.channel.now()
        present = [name for name in wanted if name in self._members]
        late = arm.back_off.paused(state.round + 1)
        paused = {name: late[name] for name in present if name in late and name != study.user}
        # Nobody sits out who is needed, and nobody after a skipped round.
        is_spared = state.skipped_in_a_row == 0 and len(present) - len(paused) >= enough
        self._paused = paused if is_spared else {}
        taking_part = tuple(name for name in present if name not in self._paused)
        self._round = Round(
            state,
            arm.method,
            RoundStart(state.round + 1, study.user, taking_part, state.params),
            arm=arm.name,
            wanted=wanted,
            spare=spare,
            cohort_of=ctx.updates.cohort_of,
        )
        self.is_over = self._round.request is None  # the method asks no more
        self.seconds = study.federation.round_deadline_seconds  # that an exchange may take
        self._undone: tuple[RunState, RoundRecord] | None = None
        self._steps: list[StepRecord] = []
        self._metrics: Metrics | None = None  # the user's: the last that it sent
        self._own_loss: float | None = None  # the user's, of what it received
        self._late: set[HospitalName] = set()  # in any exchange
        self._heard: set[HospitalName] = set()  # in any exchange
        self._slow: set[HospitalName] = set()  # in any exchange, though in time
        self._lengths: dict[HospitalName, Lengths] = {}  # of what is used

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
        ctx, arm, request = self._ctx, self._arm, self._round.request
        assert request is not None
        self._screen(replies)
        if self._left and (again := self._wait_for_those_who_left()):
            self._screen(ctx.channel.ask(self._requests(again), self.seconds))
        self._reject_outsized(request)
        entries, times = {}, {}
        for name, answer in self._answers.items():
            entry = self._replies.get(name, ExchangeRecord("absent"))
            if isinstance(answer, Absence):
                entry = replace(entry, outcome="absent", reason=answer.reason)
                if answer.over:
                    arm.over[name] = answer.reason
                if answer.late:
                    self._late.add(name)
            else:
                self._heard.add(name)
                if isinstance(answer, Rejection):
                    entry = replace(entry, outcome="rejected", reason=answer.reason)
                elif name in self._sent:
                    self._lengths[name] = {**self._lengths.get(name, {}), **self._sent[name]}
            is_measured = entry.seconds is not None and entry.bytes_received is not None
            if name in self._heard and is_measured:  # over a network
                times[name] = entry.seconds or 0.0
            entries[name] = entry
        self._slow |= too_slow(times, self.seconds)
        self._steps.append(StepRecord(request.step, ctx.channel.now() - self._asked_at, entries))
        self._undone = self._undone or arm.undo(ctx, self._own_loss, self._answers)
        if request.baseline is not None:  # counts as the user's: never an outlier
            baseline = {self._array(request): request.baseline}
            user = ctx.study.user
            self._lengths[user] = {**baseline, **self._lengths.get(user, {})}
        self._round.answer(self._answers)
        self.is_over = self._round.request is None

    def close(self) -> RoundRecord:
        """Moves the arm on, and returns what happened."""
        arm, ctx = self._arm, self._ctx
        arm.back_off.round_ended(arm.state.round + 1, self._late, self._heard, self._slow)
        after, record = self._undone or self._round.outcome
        arm.advance(ctx, after, record, self._lengths, self._own_loss)
        hospitals = {}
        for name, entry in record.hospitals.items():
            parts = [step.hospitals[name] for step in self._steps if name in step.hospitals]
            sums: dict[str, Any] = {}
            for figure in SUMMED:
                known = [v for part in parts if (v := getattr(part, figure)) is not None]
                sums[figure] = sum(known) if known else None
            member = self._members.get(name)
            hospitals[name] = replace(
                entry,
                **sums,
                software=None if member is None else member.software,
                described_samples=None if member is None else member.num_samples,
            )
        return replace(
            record,
            hospitals=hospitals,
            user_metrics=self._metrics,
            seconds=ctx.channel.now() - self._started_at,
            steps=tuple(self._steps) if len(self._steps) > 1 else (),
        )

    def _requests(self, names: Sequence[HospitalName]) -> dict[Connection, TrainRequest]:
        """Returns a request for each of these, who are here: one object wherever they are equal."""
        ctx, arm, ask = self._ctx, self._arm, self._round.request
        assert ask is not None
        study, state, members = ctx.study, arm.state, ctx.presence.members
        self._names = {members[name].connection: name for name in names}
        self._described = {
            name: members[name].num_samples for name in study.hospitals if name in members
        }
        dim, parameters = len(state.params), None
        if ask.sends_parameters:  # as the sites will have them, in a simulation too
            parameters = compress(state.params, study.federation.compression)
        spec = reply_spec(study, arm.name, ask.expects, dim, by_user=True)
        to_all = TrainRequest(
            study=study,
            arm=arm.name,
            round=state.round + 1,
            sent=parameters,
            scaling=ctx.scaling,
            run=ctx.run,
            enclosed=ask.to_all.tensors,
            step=ask.step,
            exchange=self._round.number,
            wants_update=ask.expects.update,
            values=ask.to_all.values,
            most_reply_bytes=most_reply_bytes(spec, dim),
        )
        requests = {}
        for connection, name in self._names.items():
            requests[connection] = to_all
            if (own := ask.to_each.get(name)) is not None:
                enclosed = {**to_all.enclosed, **own.tensors}
                values = {**to_all.values, **own.values}
                requests[connection] = replace(to_all, enclosed=enclosed, values=values)
        return requests

    def _screen(self, replies: Iterable[Reply]) -> None:
        study, state, request = self._ctx.study, self._arm.state, self._round.request
        assert request is not None
        for reply in replies:
            if (name := self._names.get(reply.connection)) is None:
                continue
            content, site_seconds = reply.content, None
            if isinstance(content, Rejection | Absence):
                answer: Answer = content
            else:
                terms = expected(study, self._arm.name, state, request, name, self._described)
                answer = screen(content, name, terms)
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
                    own = norm(answer.delta) if answer.norm is None else answer.norm
                    self._sent[name] = {ITSELF: own, **answer.attached_norms}
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
            del reply, content, answer  # large: the next one comes before these would go

    def _wait_for_those_who_left(self) -> list[HospitalName]:
        """Waits once: a site that disconnects whenever it is asked must not block the round."""
        user, left = self._ctx.study.user, self._left
        enough, _ = self._round.shortfall(self._answers)
        given = {n for n, a in self._answers.items() if isinstance(a, Update | SiteAnswer)}
        if not enough or user not in given | left or len(given | left) < enough:
            return []
        names = [name for name in self._round.asked if name in left or name == user]
        self._ctx.presence.wait_for(names, enough - len(given - {user}))
        return [name for name in names if name in left and self._ctx.presence.is_here(name)]

    def _reject_outsized(self, request: Ask) -> None:
        study, params = self._ctx.study, self._arm.state.params
        factors: dict[HospitalName, float] = {}  # by which the method lengthens updates
        if (steps := study.arms[self._arm.name].equal_steps(study.build_context)) is not None:
            updates = {name: a for name, a in self._answers.items() if isinstance(a, Update)}
            factors = lengthened_by(updates, study.user, steps)
        for name, factor in factors.items():
            sent = self._sent[name]
            self._sent[name] = {**sent, ITSELF: factor * sent[ITSELF]}
        baseline = norm(params) if request.baseline is None else request.baseline
        self._answers = reject_outsized(
            self._answers, study.user, baseline, len(params), study.longest_noise, factors
        )

    def _array(self, request: Ask) -> str:
        """Names what an exchange without updates measures: a step may be asked for twice."""
        return f"{request.step} {self._round.number}"


def _raise_if_hopeless(ctx: RunContext, arm: Arm, num_rounds: int) -> None:
    """Gives up after too many skipped rounds, or if too few hospitals can answer this run."""
    federation, user = ctx.study.federation, ctx.study.user
    left = len(ctx.study.hospitals) - len(arm.over)
    if arm.over and (user in arm.over or left < federation.quorum):
        raise HopelessError(
            "This run cannot be continued: " + "; ".join(f"{n}: {w}" for n, w in arm.over.items()),
            remedy="That is so where the run's folder was restored from a backup, and the hospitals"
            " have answered later rounds: begin again with `erosion server STUDY.toml`, without"
            " --resume.",
        )
    limit = federation.max_skipped_rounds
    if arm.state.skipped_in_a_row >= limit and not arm.is_over(num_rounds):
        last = arm.records[-1]
        what = f"{limit} rounds in a row were skipped in {arm.name}; the last because {last.note}"
        own = last.hospitals.get(user)
        if own and own.code == "not_finite":
            is_private = ctx.study.privacy and not ctx.study.arms[arm.name].user_only
            rate = f"{'privacy' if is_private else 'training'}.learning_rate"
            raise DivergedError(
                what,
                remedy=f"The user's training diverges: begin a new run with a smaller {rate}, or"
                f" with smaller steps of {arm.name} itself.",
            )
        limits = "federation.max_skipped_rounds says how many are too many"
        outcomes = [entry.outcome for entry in last.hospitals.values()]
        was_enough = outcomes.count("accepted") >= federation.quorum  # the method wants more
        if own and own.outcome == "accepted" and was_enough and "absent" in outcomes:
            limits += "; with a higher federation.quorum a round waits for more hospitals"
        raise RunError(what, remedy=f"{ctx.remedy} {limits}.".lstrip())
