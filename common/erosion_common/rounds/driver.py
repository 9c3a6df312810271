"""An arm's rounds. Read it from top to bottom.

run_arm     round after round: run, keep, emit, until it is over or hopeless
run_round   who is here and quorum -> ask -> screen -> undo or aggregate -> record
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from erosion_common.aggregation.cohort import HospitalName
from erosion_common.algorithms.base import RoundStart
from erosion_common.errors import HopelessError, RunError
from erosion_common.protocol.messages import Metrics, TrainRequest
from erosion_common.rounds.arm import Arm, Lengths
from erosion_common.rounds.channel import Connection, Reply
from erosion_common.rounds.context import RunContext
from erosion_common.rounds.events import RoundFinished
from erosion_common.rounds.exchange import Exchange
from erosion_common.rounds.presence import too_slow
from erosion_common.rounds.records import Absence, Rejection, RoundRecord, RunState, StepRecord
from erosion_common.rounds.round import Round


def run_arm(
    ctx: RunContext,
    arm: Arm,
    num_rounds: int,
    curve: Sequence[Metrics | None] = (),
    shown_as: Callable[[RoundRecord], RoundRecord] = lambda record: record,
) -> None:
    """Runs the rest of `num_rounds`. Raises RunError.

    `curve`: the user's metrics by round, where cross-fitting has measured them.
    """
    while not arm.is_over(num_rounds):
        record = (ctx.run_round or run_round)(ctx, arm)
        if record.round <= len(curve):
            record = replace(record, user_metrics=curve[record.round - 1])
        ctx.store.keep_round(ctx.study, arm.state, record)
        arm.records.append(record)
        ctx.emit(RoundFinished(shown_as(record), is_trial=ctx.is_trial))
        _raise_if_hopeless(ctx, arm, num_rounds)


def run_round(ctx: RunContext, arm: Arm) -> RoundRecord:
    """Runs the next round and moves `arm` on. Raises RunError."""
    round_ = OpenRound(ctx, arm)
    while not round_.is_over:
        round_.take(ctx.channel.ask(round_.requests(), round_.seconds))
    return round_.close()


class OpenRound:
    """A round under way. Flower's strategy asks the first exchange; `run_round` asks them all."""

    def __init__(self, ctx: RunContext, arm: Arm) -> None:
        """Waits for the user and a quorum. Raises RunError."""
        self._ctx, self._arm = ctx, arm
        study, presence = ctx.study, ctx.presence
        wanted, spare = arm.wanted(study), len(study.hospitals) - study.federation.quorum
        enough = max(1, len(wanted) - spare)
        presence.wait_for(wanted, enough)
        self._members, self._started_at = dict(presence.members), ctx.channel.now()
        present = [name for name in wanted if name in self._members]
        self._paused = _paused(arm, study.user, present, enough)
        present = [name for name in present if name not in self._paused]
        self._round = Round(
            arm.state,
            arm.method,
            RoundStart(arm.state.round + 1, study.user, tuple(present), arm.state.params),
            arm=arm.name,
            wanted=wanted,
            spare=spare,
            cohort_of=ctx.updates.cohort_of,
        )
        self._exchange: Exchange | None = None
        self._undone: tuple[RunState, RoundRecord] | None = None
        self._steps: list[StepRecord] = []
        self._metrics: Metrics | None = None  # the user's: the last that it sent
        self._own_loss: float | None = None
        self._late: set[HospitalName] = set()  # in any exchange
        self._heard: set[HospitalName] = set()  # in any exchange
        self._slow: set[HospitalName] = set()  # in any exchange, though in time
        self._lengths: dict[HospitalName, Lengths] = {}  # of what is used

    @property
    def is_over(self) -> bool:
        """Returns True once the method asks no more."""
        return self._round.request is None

    @property
    def seconds(self) -> float:
        """How long an exchange may take."""
        return self._ctx.study.federation.round_deadline_seconds

    def requests(self) -> dict[Connection, TrainRequest]:
        """Returns what the next exchange asks."""
        self._exchange = Exchange(self._ctx, self._arm, self._round, self._paused)
        return self._exchange.requests()

    def take(self, replies: Iterable[Reply]) -> None:
        """Screens the replies to `requests`, and aggregates after the last exchange."""
        exchange, request, user = self._exchange, self._round.request, self._ctx.study.user
        assert exchange is not None, "requests comes first"
        assert request is not None
        exchange.take(replies)
        self._note(exchange)
        self._undone = self._undone or self._arm.undo(
            self._ctx.study, self._own_loss, exchange.answers
        )
        if request.usual is not None:  # counts as the user's: never an outlier
            self._lengths[user] = {exchange.array: request.usual, **self._lengths.get(user, {})}
        self._exchange = None
        self._round.answer(exchange.answers)

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

    def _note(self, exchange: Exchange) -> None:
        self._metrics = exchange.metrics or self._metrics
        self._own_loss = self._own_loss if exchange.own_loss is None else exchange.own_loss
        self._steps.append(exchange.record())
        for name, answer in exchange.answers.items():
            if isinstance(answer, Absence):
                if answer.late:
                    self._late.add(name)
            else:
                self._heard.add(name)
                if not isinstance(answer, Rejection) and name in exchange.lengths:
                    known = self._lengths.get(name, {})
                    self._lengths[name] = {**known, **exchange.lengths[name]}
        times = {
            name: reply.seconds
            for name, reply in exchange.replies.items()
            if name in self._heard
            and reply.seconds is not None
            and reply.bytes_received is not None
        }  # over a network
        self._slow |= too_slow(times, self.seconds)

    def _sums(self, name: HospitalName) -> dict[str, Any]:
        entries = [step.hospitals[name] for step in self._steps if name in step.hospitals]
        sums: dict[str, Any] = {}
        for figure in ("site_seconds", "bytes_received", "bytes_sent"):
            known = [value for e in entries if (value := getattr(e, figure)) is not None]
            sums[figure] = sum(known) if known else None
        return sums


def _paused(
    arm: Arm, user: HospitalName, present: Sequence[HospitalName], enough: int
) -> dict[HospitalName, Absence]:
    """Returns who sits out, and why: nobody who is needed, and nobody after a skipped round."""
    paused = {
        name: why
        for name in present
        if name != user and (why := arm.back_off.why_paused(name, arm.state.round + 1)) is not None
    }
    spared = arm.state.skipped_in_a_row == 0 and len(present) - len(paused) >= enough
    return paused if spared else {}


def _raise_if_hopeless(ctx: RunContext, arm: Arm, num_rounds: int) -> None:
    """Gives up after too many skipped rounds, or if too few hospitals can answer this run."""
    federation, user = ctx.study.federation, ctx.study.user
    left = len(ctx.study.hospitals) - len(arm.over)
    if arm.over and (user in arm.over or left < federation.quorum):
        reasons = "; ".join(f"{n}: {why.removesuffix('.')}" for n, why in arm.over.items())
        raise HopelessError(
            f"This run cannot be continued. {reasons}. That is so where the run's folder was"
            " restored from a backup, and the hospitals have answered later rounds: begin"
            " again with `erosion server STUDY.toml`, without --resume."
        )
    limit = federation.max_skipped_rounds
    if arm.state.skipped_in_a_row >= limit and not arm.is_over(num_rounds):
        raise RunError(
            f"{limit} rounds in a row were skipped in {arm.name}; the last because"
            f" {arm.records[-1].note.removesuffix('.')}.{ctx.remedy}"
            " federation.max_skipped_rounds says how many are too many; with a higher"
            " federation.quorum a round waits for more hospitals."
        )
