"""One exchange of a round: requests go out, answers come back and are screened."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from erosion_common.aggregation.cohort import HospitalName, Update
from erosion_common.aggregation.vectors import norm
from erosion_common.algorithms.base import Ask, Brings, SiteAnswer
from erosion_common.algorithms.equal_steps import lengthened_by
from erosion_common.compression.codec import compress
from erosion_common.protocol.messages import Metrics, Scaling, TrainRequest, TrainResult
from erosion_common.rounds.arm import Arm, Lengths, lengths_of
from erosion_common.rounds.bounds import most_reply_bytes
from erosion_common.rounds.channel import Connection, Reply
from erosion_common.rounds.context import RunContext
from erosion_common.rounds.evaluation import problem_with_metrics
from erosion_common.rounds.records import (
    Absence,
    Answer,
    ExchangeRecord,
    Rejection,
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


class Exchange:
    """What is asked at once, and what comes back."""

    def __init__(
        self, ctx: RunContext, arm: Arm, round_: Round, paused: Mapping[HospitalName, Absence]
    ) -> None:
        """Notes who is absent already. `paused`: those that are not asked in this round, and why"""
        assert round_.request is not None
        self._ctx, self._arm, self._round, self._request = ctx, arm, round_, round_.request
        ctx.presence.refresh()
        self._here = [n for n in round_.asked if n in ctx.presence.members and n not in paused]
        self.answers: dict[HospitalName, Answer] = {
            name: paused.get(name) or Absence(ctx.presence.why_away(name))
            for name in round_.asked
            if name not in self._here
        }
        self.replies: dict[HospitalName, ExchangeRecord] = {}  # outcome still open
        self.metrics: Metrics | None = None  # the user's
        self.own_loss: float | None = None  # the user's, of what it received, on its training part
        self.lengths: dict[HospitalName, Lengths] = {}  # of what they sent
        self._left: set[HospitalName] = set()  # disconnected meanwhile
        self._asked_at = ctx.channel.now()

    @property
    def array(self) -> str:
        """Names what an exchange without updates measures: a step may be asked for twice."""
        return f"{self._request.step} {self._round.number}"

    def requests(self) -> dict[Connection, TrainRequest]:
        """Returns the requests to those that are here."""
        return self._requests(self._here)

    def take(self, replies: Iterable[Reply]) -> None:
        """Screens the replies; asks those that disconnected once more if the round needs them."""
        self._take_all(replies)
        if again := self._wait_for_those_who_left():
            seconds = self._ctx.study.federation.round_deadline_seconds
            self._take_all(self._ctx.channel.ask(self._requests(again), seconds))
        self._reject_outsized()
        for name, answer in self.answers.items():
            if isinstance(answer, Absence) and answer.over:
                self._arm.over[name] = answer.reason

    def record(self) -> StepRecord:
        """Returns the journal's entry."""
        entries = {}
        for name, answer in self.answers.items():
            entry = self.replies.get(name, ExchangeRecord("absent"))
            if isinstance(answer, Rejection):
                entry = replace(entry, outcome="rejected", reason=answer.reason)
            elif isinstance(answer, Absence):
                entry = replace(entry, outcome="absent", reason=answer.reason)
            entries[name] = entry
        return StepRecord(self._request.step, self._ctx.channel.now() - self._asked_at, entries)

    def _requests(self, names: Sequence[HospitalName]) -> dict[Connection, TrainRequest]:
        ctx, members = self._ctx, self._ctx.presence.members
        self._names = {members[name].connection: name for name in names}
        self._described = {name: member.num_samples for name, member in members.items()}
        requests = train_requests(
            ctx.study,
            self._arm.name,
            self._arm.state,
            self._request,
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
        content, study = reply.content, self._ctx.study
        site_seconds = None
        if isinstance(content, Rejection | Absence):
            answer: Answer = content
        else:
            answer = screen(content, name, self._expected(name))
            site_seconds = getattr(content.header, "seconds", None)
        (self._left.add if reply.left else self._left.discard)(name)
        if name == study.user:
            header = content.header if isinstance(content, TrainResult) else None
            self.metrics = None if header is None else header.metrics
            self.own_loss = None if header is None else header.own_loss
            if self.metrics and (wrong := problem_with_metrics(self.metrics, study.task)):
                answer, self.metrics = Rejection(wrong), None
        match answer:
            case Update():
                self.lengths[name] = lengths_of(answer)
                answer = self._ctx.updates.keep(answer)
            case SiteAnswer():
                if answer.norm is not None:
                    self.lengths[name] = {self.array: answer.norm}
                if self._request.as_it_comes:
                    answer = self._request.as_it_comes(name, answer)
            case _:  # a site's own words may be megabytes
                answer = replace(answer, reason=printable(answer.reason) or "no reason given")
        self.answers[name] = answer
        self.replies[name] = ExchangeRecord(
            "accepted",
            seconds=reply.seconds,
            site_seconds=site_seconds,
            bytes_received=reply.bytes_received,
            bytes_sent=reply.bytes_sent,
        )

    def _wait_for_those_who_left(self) -> list[HospitalName]:
        """Waits once: a site that disconnects whenever it is asked must not block the round."""
        user, left = self._ctx.study.user, self._left
        enough = self._round.needed(self.answers)
        given = {n for n, a in self.answers.items() if isinstance(a, Update | SiteAnswer)}
        if not enough or user not in given | left or len(given | left) < enough:
            return []
        names = [name for name in self._round.asked if name in left or name == user]
        self._ctx.presence.wait_for(names, enough - len(given - {user}))
        return [name for name in names if name in left and self._ctx.presence.is_here(name)]

    def _reject_outsized(self) -> None:
        study, params = self._ctx.study, self._arm.state.params
        updates = {name: a for name, a in self.answers.items() if isinstance(a, Update)}
        steps = study.arms[self._arm.name].equal_steps(study.build_context)
        factors = lengthened_by(updates, study.user, steps)  # by how much the method does that
        for name, factor in factors.items():
            sent = self.lengths[name]
            self.lengths[name] = {**sent, ITSELF: factor * sent[ITSELF]}
        usual = norm(params) if self._request.usual is None else self._request.usual
        self.answers = reject_outsized(
            self.answers, study.user, usual, len(params), study.longest_noise, factors
        )

    def _expected(self, hospital: HospitalName) -> Expected:
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
            self._request.step,
            reply_spec(study, name, self._request.brings, dim, by_user=is_user),
            study.federation.max_update_norm,
            sealed=self._request.brings.sealed and not is_user,
            # In a trial the user trains without a fold of the patients that it described.
            num_samples=None if study.fold is not None else patients,
            most_samples=None if is_user else sample_cap(described, hospital),
            most_seen=None if is_user else most_seen,
            most_steps=steps_cap(study, patients),
        )


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
        wants_update=ask.brings.update,
        values=ask.to_all.values,
        most_reply_bytes=most_reply_bytes(
            reply_spec(study, arm, ask.brings, dim, by_user=True), dim
        ),
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


def reply_spec(study: Study, arm: str, brings: Brings, dim: int, *, by_user: bool) -> Brings:
    """Returns what an answer must bring, including what the arm's method attaches to updates."""
    if not brings.update:
        return brings
    settings = study.arms[arm]
    own = settings.own_attachments(len(study.hospitals)) if by_user else {}
    return replace(
        brings,
        tensors={**settings.attachment_terms(dim), **brings.tensors},
        optional={**own, **brings.optional},
    )
