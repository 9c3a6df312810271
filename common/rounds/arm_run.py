"""One arm's rounds: who is asked, what they answered, what comes of it, and when that is hopeless.

A round is a generator that yields exchanges and takes their replies, so that whoever carries the
requests can be anybody: Flower's `Strategy.start` in a deployment, `play` in a simulation.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from erosion.common.aggregation.cohort import Cohort, HospitalName, MemoryCohort, Update
from erosion.common.aggregation.vectors import norm
from erosion.common.algorithms.base import (
    Algorithm,
    Ask,
    RoundStart,
    SiteAnswer,
)
from erosion.common.algorithms.equal_steps import lengthened_by
from erosion.common.errors import HopelessError, RunError
from erosion.common.protocol.messages import TrainRequest, TrainResult
from erosion.common.rounds.arm_algorithm import Sealing, algorithm_of
from erosion.common.rounds.checked_figures import problem_with_metrics
from erosion.common.rounds.gathered import Gathered, Taken
from erosion.common.rounds.lateness import Lateness
from erosion.common.rounds.membership import Membership
from erosion.common.rounds.one_round import RoundInProgress, spare_hospitals, undo, wanted
from erosion.common.rounds.records import (
    Absence,
    Answer,
    ExchangeRecord,
    Rejection,
    RoundRecord,
    RunState,
)
from erosion.common.rounds.requests import Terms
from erosion.common.rounds.screening import (
    ITSELF,
    Expected,
    reject_outsized,
    sample_cap,
    screen,
    seen_cap,
    steps_cap,
)
from erosion.common.rounds.transport import Connection, Reply, Transport
from erosion.common.rounds.undoing import (
    LastRound,
    Lengths,
    culprit_of,
    from_before,
    harm_of,
    lengths_of,
    usual,
)
from erosion.common.rounds.waiting import Needed, Waiting
from erosion.common.study.study import Study
from erosion.common.support.text import printable


@dataclass(frozen=True, slots=True)
class Exchange:
    """Requests to be sent at once, and how long their replies may take."""

    requests: Mapping[Connection, TrainRequest]
    seconds: float


@dataclass(frozen=True, slots=True)
class Storage:
    """Where a round's updates are kept until its end; this one keeps them in memory."""

    keep: Callable[[Update], Update] = lambda update: update
    cohort_of: Callable[[Update, Mapping[HospitalName, Update]], Cohort] = MemoryCohort


RoundSteps = Generator[Exchange, Iterator[Reply], RoundRecord]


class ArmRun:
    """The rounds of one arm; everything that lasts is in `state`, so that a run can be resumed."""

    def __init__(
        self,
        terms: Terms,
        state: RunState,
        membership: Membership,
        transport: Transport,
        *,
        storage: Storage,
        waiting: Waiting,
        sealing: Sealing | None = None,
        before: RunState | None = None,
    ) -> None:
        """Go on from `state`.

        `before`: what its last round that moved anything started from; None where it is not known.
        """
        self.state = state
        self._terms, self._membership, self._transport = terms, membership, transport
        self._storage, self._waiting = storage, waiting
        self._lateness = Lateness()
        self._over: dict[HospitalName, str] = {}  # who cannot answer this run any more, and why
        self._last: LastRound | None = None
        if before is not None and state.lengths:
            self._last = self._undoable(before, state)
        self._algorithm: Algorithm[Any] = algorithm_of(
            terms.study, terms.arm, run=terms.run, scaling=terms.scaling, sealing=sealing
        )

    @property
    def study(self) -> Study:
        """The arm's study."""
        return self._terms.study

    @property
    def arm(self) -> str:
        """The arm's name."""
        return self._terms.arm

    def round(self) -> RoundSteps:
        """The next round; `state` is moved on when it ends.

        It begins when the user's site and a quorum are here, and a hospital that it cannot do
        without is waited for and asked again where its connection breaks meanwhile.
        """
        study, transport = self.study, self._transport
        names = wanted(study, self._algorithm, self.state)
        spare = spare_hospitals(study)
        enough = max(1, len(names) - spare)
        self._waiting.until_here(Needed(names, enough))
        started, here = transport.now(), self._membership.members
        software = {name: member.software for name, member in here.items()}
        described = {name: member.num_samples for name, member in here.items()}
        present = tuple(name for name in names if name in here)
        paused = self._paused(present, enough)
        present = tuple(name for name in present if name not in paused)
        begun = RoundStart(self.state.round + 1, study.user, present, self.state.params)
        in_progress = RoundInProgress(
            self.state,
            self._algorithm,
            begun,
            arm=self.arm,
            wanted=names,
            spare=spare,
            cohort_of=self._storage.cohort_of,
        )
        gathered = Gathered()
        undone: tuple[RunState, RoundRecord] | None = None
        while in_progress.finished is None:
            step, usual = in_progress.ask.step, in_progress.ask.usual
            array, begun_at = _measured_in(in_progress), transport.now()
            taken = yield from self._exchange(in_progress, paused)
            deadline = study.federation.round_deadline_seconds
            gathered.add(step, transport.now() - begun_at, taken, deadline)
            undone = undone or self._undone(gathered.own_loss, taken.answers)
            if usual is not None:  # counts as the user's, which nobody takes for a culprit
                own = gathered.lengths.get(study.user, {})
                gathered.lengths[study.user] = {array: usual, **own}
            in_progress.answer(taken.answers)
            del taken  # the updates are large; do not hold them twice
        late, heard, slow = gathered.late, gathered.heard, gathered.slow
        self._lateness.round_ended(begun.round, late, heard, slow)
        after, record = undone or in_progress.finished
        if record.outcome == "done" and gathered.own_loss is not None:
            after = replace(after, own_losses=(*after.own_losses, gathered.own_loss))
        self.state = self._remember(after, record, gathered.lengths, is_undone=undone is not None)
        return replace(
            record,
            hospitals={
                name: replace(
                    entry,
                    **gathered.sums(name),
                    software=software.get(name),
                    described_samples=described.get(name),
                )
                for name, entry in record.hospitals.items()
            },
            user_metrics=gathered.metrics,
            seconds=transport.now() - started,
            steps=tuple(gathered.steps) if len(gathered.steps) > 1 else (),
        )

    def _undone(
        self, own_loss: float | None, answers: Mapping[HospitalName, Answer]
    ) -> tuple[RunState, RoundRecord] | None:
        """What is to be noted instead of this round, where the last one has done harm."""
        last, user = self._last, self.study.user
        if last is None or not (harm := harm_of(last, user, own_loss, answers)):
            return None
        if (found := culprit_of(last, user)) is None:
            return None
        culprit, times = found
        reason = f"{harm}; what {culprit} sent was {times:.4g} times as long as usual"
        return undo(
            self.state,
            last.before,
            self._algorithm,
            answers,
            arm=self.arm,
            culprit=culprit,
            reason=reason,
        )

    def _remember(
        self,
        after: RunState,
        record: RoundRecord,
        lengths: Mapping[HospitalName, Lengths],
        *,
        is_undone: bool,
    ) -> RunState:
        """`after` with what the next round may have to go back to.

        Nobody sees single updates where sealed.
        """
        if is_undone or self.study.federation.sealed:
            self._last = None
            return replace(after, lengths={})
        if record.outcome == "done":
            measured = self.study.arms[self.arm].measured_attachments
            trained_on = from_before(self.state.lengths, measured)
            ordered = {  # in the study's order, whoever answered first
                name: {**trained_on.get(name, {}), **lengths.get(name, {})}
                for name in self.study.hospitals
                if name in lengths or name in trained_on
            }
            after = replace(after, lengths=ordered)
            self._last = self._undoable(self.state, after)
        return after

    def _undoable(self, before: RunState, after: RunState) -> LastRound:
        """The last round, which went from `before` to `after`."""
        kept = self._storage.keep(
            Update("before", before.round, before.params, num_samples=1, samples_seen=1)
        )
        before = replace(before, params=kept.delta)
        return LastRound(before, after.lengths, usual(after.own_losses))

    def is_over(self, num_rounds: int) -> bool:
        """The arm has had so many rounds, or its rule has stopped it."""
        return self.state.stopped or self.state.round >= num_rounds

    def raise_if_hopeless(self, record: RoundRecord, num_rounds: int) -> None:
        """Give up the rounds ahead after too many skipped ones in a row. Raises RunError.

        At once, with HopelessError, where too few hospitals can still answer this run.
        """
        federation, user = self.study.federation, self.study.user
        left = len(self.study.hospitals) - len(self._over)
        if self._over and (user in self._over or left < federation.quorum):
            reasons = "; ".join(f"{n}: {why.removesuffix('.')}" for n, why in self._over.items())
            raise HopelessError(
                f"This run cannot be continued. {reasons}. That is so where the run's folder was"
                " restored from a backup, and the hospitals have answered later rounds: begin"
                " again with `erosion server STUDY.toml`, without --resume."
            )
        limit = federation.max_skipped_rounds
        if self.state.skipped_in_a_row >= limit and not self.is_over(num_rounds):
            raise RunError(
                f"{limit} rounds in a row were skipped in {self.arm}; the last because"
                f" {record.note.removesuffix('.')}.{self._waiting.remedy}"
                " federation.max_skipped_rounds says how many are too many; with a higher"
                " federation.quorum a round waits for more hospitals."
            )

    def _exchange(
        self, in_progress: RoundInProgress, paused: Mapping[HospitalName, str]
    ) -> Generator[Exchange, Iterator[Reply], Taken]:
        user, asked = self.study.user, in_progress.asked
        self._membership.refresh()
        reachable = self._membership.members.keys() - paused
        present = [name for name in asked if name in reachable]
        away = (name for name in asked if name not in reachable)
        taken = Taken({n: Absence(paused.get(n) or self._membership.why_away(n)) for n in away})
        yield from self._ask(in_progress, taken, present)
        if again := self._wait_for_those_who_left(in_progress, taken):
            yield from self._ask(in_progress, taken, again)
        for name, given in taken.answers.items():
            if isinstance(given, Absence) and given.over:
                self._over[name] = given.reason
        usual, params = in_progress.ask.usual, self.state.params
        factors = self._lengthened_by(taken.answers)
        for name, factor in factors.items():
            brought = taken.lengths[name]
            taken.lengths[name] = {**brought, ITSELF: factor * brought[ITSELF]}
        taken.answers = reject_outsized(
            taken.answers,
            user,
            norm(params) if usual is None else usual,
            len(params),
            self.study.longest_noise,
            factors,
        )
        return taken

    def _paused(self, present: Sequence[HospitalName], enough: int) -> dict[HospitalName, str]:
        """Who is not asked in this round because it was late, and why.

        Nobody who is needed, and nobody after a round that was skipped.
        """
        paused = {
            name: why
            for name in present
            if name != self.study.user
            and (why := self._lateness.why_not_asked(name, self.state.round + 1)) is not None
        }
        spared = self.state.skipped_in_a_row == 0 and len(present) - len(paused) >= enough
        return paused if spared else {}

    def _lengthened_by(self, answers: Mapping[HospitalName, Answer]) -> dict[HospitalName, float]:
        """By how much the method lengthens each of the updates."""
        updates = {name: a for name, a in answers.items() if isinstance(a, Update)}
        steps = self.study.arms[self.arm].equal_steps(self.study.build_context)
        return lengthened_by(updates, self.study.user, steps)

    def _wait_for_those_who_left(
        self, in_progress: RoundInProgress, taken: Taken
    ) -> list[HospitalName]:
        """Hospitals to ask again; nobody, where the exchange can do without them, or not be saved.

        Once: a site that breaks down whenever it is asked must not keep the round for ever.
        """
        user, enough, left = self.study.user, in_progress.needs(taken.answers), taken.left
        given = {n for n, a in taken.answers.items() if isinstance(a, Update | SiteAnswer)}
        if enough is None or user not in given | left or len(given | left) < enough:
            return []
        names = [name for name in in_progress.asked if name in left or name == user]
        self._waiting.until_here(Needed(names, enough - len(given - {user})))
        return [name for name in names if name in left and self._membership.is_here(name)]

    def _ask(
        self, in_progress: RoundInProgress, taken: Taken, names: list[HospitalName]
    ) -> Generator[Exchange, Iterator[Reply], None]:
        members, ask = self._membership.members, in_progress.ask
        requests = self._terms.requests(self.state, ask, in_progress.exchange, names)
        who = {members[name].connection: name for name in names}
        described = {name: member.num_samples for name, member in members.items()}
        replies = yield Exchange(
            {connection: requests[name] for connection, name in who.items()},
            self.study.federation.round_deadline_seconds,
        )
        del requests
        for reply in replies:
            if (name := who.get(reply.connection)) is not None:
                self._take(taken, name, reply, self._expected(ask, name, described), in_progress)
            del reply  # what is used of it is in the answer

    def _expected(
        self, ask: Ask, hospital: HospitalName, described: Mapping[HospitalName, int]
    ) -> Expected:
        """What the hospital's answer must be; `described`: training patients of those here."""
        study, dim, patients = self.study, len(self.state.params), described[hospital]
        is_user = hospital == study.user
        expected = Expected(
            self.arm,
            self.state.round + 1,
            dim,
            ask.step,
            self._terms.brought(ask.brings, dim, by_user=is_user),
            study.federation.max_update_norm,
            sealed=ask.brings.sealed and not is_user,
            # In a trial the user trains without a fold of the patients that it described.
            num_samples=None if study.fold is not None else patients,
            most_steps=steps_cap(study, patients),
        )
        if is_user:
            return expected
        most_seen = patients  # with privacy its one step is over all of them
        if study.privacy is None:
            most_seen = seen_cap(study.training, patients, study.arms[self.arm].trainings)
        return replace(expected, most_samples=sample_cap(described, hospital), most_seen=most_seen)

    def _take(
        self,
        taken: Taken,
        name: HospitalName,
        reply: Reply,
        expected: Expected,
        in_progress: RoundInProgress,
    ) -> None:
        content, ask = reply.content, in_progress.ask
        answer: Answer
        site_seconds = None
        if isinstance(content, Rejection | Absence):
            answer = content
        else:
            answer = screen(content, name, expected)
            site_seconds = getattr(content.header, "seconds", None)
        taken.left.discard(name)
        if reply.left:
            taken.left.add(name)
        if name == self.study.user:
            header = content.header if isinstance(content, TrainResult) else None
            taken.metrics = None if header is None else header.metrics
            taken.own_loss = None if header is None else header.own_loss
            if taken.metrics and (wrong := problem_with_metrics(taken.metrics, self.study.task)):
                answer, taken.metrics = Rejection(wrong), None
        if isinstance(answer, Update):
            taken.lengths[name] = lengths_of(answer)
            answer = self._storage.keep(answer)
        elif isinstance(answer, SiteAnswer):
            if answer.norm is not None:
                taken.lengths[name] = {_measured_in(in_progress): answer.norm}
            answer = ask.as_it_comes(name, answer) if ask.as_it_comes else answer
        elif isinstance(answer, Rejection | Absence):  # a site's own words may be megabytes
            answer = replace(answer, reason=printable(answer.reason) or "no reason given")
        taken.answers[name] = answer
        taken.replies[name] = ExchangeRecord(
            "accepted",
            seconds=reply.seconds,
            site_seconds=site_seconds,
            bytes_received=reply.bytes_received,
            bytes_sent=reply.bytes_sent,
        )


def _measured_in(in_progress: RoundInProgress) -> str:
    """A name for what an exchange without updates brings: a step may be asked for again."""
    return f"{in_progress.ask.step} {in_progress.exchange}"


def play(run: ArmRun, transport: Transport) -> RoundRecord:
    """One round over a transport."""
    steps = run.round()
    exchange = next(steps)
    while True:
        try:
            exchange = steps.send(transport.ask(exchange.requests, exchange.seconds))
        except StopIteration as end:
            record: RoundRecord = end.value
            return record
