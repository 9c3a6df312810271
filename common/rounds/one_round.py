"""One round: from the hospitals' answers to the next state and the record of the round."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from erosion.common.aggregation.cohort import Cohort, HospitalName, MemoryCohort, Update
from erosion.common.aggregation.vectors import is_finite
from erosion.common.algorithms.base import (
    Algorithm,
    Answers,
    Ask,
    RoundStart,
    SiteAnswer,
    Step,
)
from erosion.common.rounds.checked_step import (
    checked_ask,
    checked_first,
    checked_state,
    checked_step,
)
from erosion.common.rounds.records import (
    Absence,
    Answer,
    HospitalRecord,
    Rejection,
    RoundRecord,
    RunState,
)
from erosion.common.study.study import Study
from erosion.common.support.text import most_said


def start(algorithm: Algorithm[Any], params: Tensor, arm: str = "") -> RunState:
    """The state before the first round. Raises RunError where the method makes no such state."""
    first = checked_first(algorithm.init(len(params)), arm)
    return RunState(round=0, params=params, algorithm_state=first)


def wanted(study: Study, algorithm: Algorithm[Any], state: RunState) -> list[HospitalName]:
    """Whose update the next round wants: the user's always, a peer's where the algorithm asks."""
    return [
        name
        for name in study.hospitals
        if name == study.user
        or (name not in state.distrusted and algorithm.asks(state.algorithm_state, name))
    ]


class RoundInProgress:
    """A round's exchanges, one after another; nothing here sends or waits.

    Without an answer of the user's that was asked for, or below the quorum, the round is skipped:
    it is recorded and the parameters stay. Hospitals that the method does not ask (any more) count
    towards the quorum: it is there for hospitals that should have been heard and were not.
    """

    def __init__(
        self,
        state: RunState,
        algorithm: Algorithm[Any],
        begun: RoundStart,
        *,
        arm: str,
        wanted: Sequence[HospitalName],
        spare: int,
        cohort_of: Callable[[Update, Mapping[HospitalName, Update]], Cohort] = MemoryCohort,
    ) -> None:
        """Begin. `wanted` are the hospitals that should be heard; up to `spare` may be missing.

        `cohort_of` makes the cohort of the user's own update and the peers', which may lie on disk.
        """
        self._state, self._begun, self._arm = state, begun, arm
        self._wanted, self._spare, self._cohort_of = wanted, spare, cohort_of
        self._exchanges = algorithm.begin(state.algorithm_state, begun)
        self._answers: dict[HospitalName, Answer] = {}  # the last that each gave
        self._brought: dict[HospitalName, Update] = {}  # by those who lack in an exchange that the
        # method goes on without: a round that is done has their updates
        self._lost: set[HospitalName] = set()  # did not answer whatever they were asked
        self._cohort: Cohort | None = None
        self.exchange = 1
        self.finished: tuple[RunState, RoundRecord] | None = None
        self._ask: Ask | None = None
        self._go_on(None)

    @property
    def ask(self) -> Ask:
        """What is to be asked now."""
        assert self._ask is not None, "the round has finished"
        return self._ask

    @property
    def asked(self) -> list[HospitalName]:
        """Whom."""
        if self.ask.hospitals is not None:
            return list(self.ask.hospitals)
        return [name for name in self._wanted if name not in self._lost]

    def needs(self, answers: Mapping[HospitalName, Answer]) -> int | None:
        """How many of `asked` must answer beside the user; None: these `answers` will do."""
        if not self._why_skip(answers, _useful(answers)):
            return None
        return 1 if self.ask.any_number else self._enough(answers)

    def answer(self, answers: Mapping[HospitalName, Answer]) -> None:
        """Go on with what came back: an answer, or the reason for its lack, of all `asked`."""
        asked = self.asked
        useful = _useful({name: answers[name] for name in asked})
        if self.ask.any_number:
            self._brought |= {
                name: update
                for name in answers.keys() - useful.keys()
                if isinstance(update := self._answers.get(name), Update)
            }
        self._answers |= {
            name: answer
            for name, answer in answers.items()
            if not (isinstance(answer, SiteAnswer) and isinstance(self._answers.get(name), Update))
        }
        self._lost |= set(asked) - set(useful)
        self._lost -= set(useful)  # asked again in spite of it, and there
        if reason := self._why_skip(answers, useful):
            self._exchanges.close()
            self.finished = _skip(self._state, self._answers, self._arm, reason)
            return
        updates = {n: a for n, a in useful.items() if isinstance(a, Update)}
        if self.ask.brings.update:
            own = updates.pop(self._begun.user)
            self._cohort = self._cohort_of(own, updates)
        self.exchange += 1
        self._go_on(
            Answers(
                replies={n: a for n, a in useful.items() if isinstance(a, SiteAnswer)},
                missing={
                    n: a.reason for n in asked if isinstance(a := answers[n], Rejection | Absence)
                },
                updates=self._cohort if self.ask.brings.update else None,
            )
        )

    def _go_on(self, came: Answers | None) -> None:
        known = {*self._wanted, *self._begun.hospitals, *self._answers, *self._state.weights}
        try:
            ask = next(self._exchanges) if came is None else self._exchanges.send(came)
        except StopIteration as end:
            # After updates a hospital may have dropped out of what was asked next.
            cohort = self._cohort if self.ask.brings.update else None
            step = checked_step(end.value, self._state, cohort, known, self._arm)
            self.finished = self._concluded(step)
        else:
            self._ask = checked_ask(ask, self._begun, known, self._arm)

    def _concluded(self, step: Step[Any]) -> tuple[RunState, RoundRecord]:
        answers = self._answers
        if step.outcome == "done":
            rejected = (
                f"the last answer of {name} was rejected: {last.reason}"
                for name in self._brought
                if isinstance(last := answers[name], Rejection)
            )
            step = replace(step, note="; ".join(filter(None, (step.note, *rejected))))
            answers = answers | self._brought
        return _conclude(self._state, step, self._cohort, answers, self._arm)

    def _why_skip(
        self, answers: Mapping[HospitalName, Answer], useful: Mapping[HospitalName, Answer]
    ) -> str:
        own = answers.get(self._begun.user)
        if isinstance(own, Rejection):
            return f"the user's own update was rejected: {own.reason}"
        if isinstance(own, Absence):
            return f"the user's own site is absent: {own.reason}"
        if self.ask.any_number:
            return ""
        needed = self._enough(answers)
        if len(useful) < needed:
            if self.ask.brings.update:
                return f"{len(useful)} usable updates, {needed} are needed (federation.quorum)"
            reasons = (a.reason for a in answers.values() if isinstance(a, Rejection | Absence))
            what = f"{len(useful)} usable answers to {self.ask.step!r}, {needed} are needed"
            return what + most_said(reasons)
        return ""

    def _enough(self, answers: Mapping[HospitalName, Answer]) -> int:
        return max(1, len(answers.keys() | self._lost) - self._spare)


def _useful(answers: Mapping[HospitalName, Answer]) -> dict[HospitalName, Update | SiteAnswer]:
    return {name: a for name, a in answers.items() if isinstance(a, Update | SiteAnswer)}


def spare_hospitals(study: Study) -> int:
    """How many of the hospitals that a round wants may be missing: its quorum allows no more."""
    return len(study.hospitals) - study.federation.quorum


def advance(
    state: RunState,
    algorithm: Algorithm[Any],
    answers: Mapping[HospitalName, Answer],
    *,
    arm: str,
    user: HospitalName,
    quorum: int,
    cohort_of: Callable[[Update, Mapping[HospitalName, Update]], Cohort] = MemoryCohort,
) -> tuple[RunState, RoundRecord]:
    """A whole round of a method that asks once: `answers` are all that was asked for."""
    answers = {user: Absence("was not connected"), **answers}
    names = tuple(answers)
    in_progress = RoundInProgress(
        state,
        algorithm,
        RoundStart(state.round + 1, user, names, state.params),
        arm=arm,
        wanted=names,
        spare=len(names) - quorum,
        cohort_of=cohort_of,
    )
    in_progress.answer(answers)
    assert in_progress.finished is not None, "the method has another exchange"
    return in_progress.finished


def _conclude(
    state: RunState,
    step: Step[Any],
    cohort: Cohort | None,
    answers: Mapping[HospitalName, Answer],
    arm: str,
) -> tuple[RunState, RoundRecord]:
    distances: dict[HospitalName, float] = {}
    if cohort is not None:
        distances = (
            dict(step.distances)
            if step.distances is not None
            else dict(zip(cohort.peers, cohort.distances_to_own().tolist(), strict=True))
        )
        distances[cohort.own.agent] = 0.0
    directions = _directions(cohort) if cohort is not None and state.round == 0 else {}
    advanced = step.outcome == "done"
    params = state.params + step.delta if advanced else state.params
    if not is_finite(params):
        return _skip(state, answers, arm, "the aggregate of finite updates is not finite")
    after = replace(
        state,
        round=state.round + 1,
        params=params,
        algorithm_state=step.state,
        weights={**state.weights, **step.weights, **dict.fromkeys(state.distrusted, 0.0)},
        skipped_in_a_row=state.skipped_in_a_row + 1 if step.outcome == "skipped" else 0,
        stopped=step.outcome == "stopped",
    )
    records = {
        agent: replace(
            record, distance=_finite(distances.get(agent)), direction=directions.get(agent)
        )
        for agent, record in _records(
            {**answers, **{name: Rejection(why) for name, why in step.rejected.items()}},
            state.weights,
            after.weights,
        ).items()
    }
    return after, RoundRecord(arm, after.round, step.outcome, step.note, records)


def _directions(cohort: Cohort) -> dict[HospitalName, float]:
    """The cosine of every peer's update with the user's, where both are seen and not 0."""
    if any(update.hello is not None for update in cohort.updates):
        return {}  # nobody sees those of a sealed round
    own, *norms = cohort.norms().tolist()
    relative = cohort.distances_to_own().tolist()
    return {
        name: max(-1.0, min(1.0, (norm**2 + own**2 - (apart * own) ** 2) / (2 * norm * own)))
        for name, norm, apart in zip(cohort.peers, norms, relative, strict=True)
        if own > 0 and norm > 0
    }


def undo(
    state: RunState,
    before: RunState,
    algorithm: Algorithm[Any],
    answers: Mapping[HospitalName, Answer],
    *,
    arm: str,
    culprit: HospitalName,
    reason: str,
) -> tuple[RunState, RoundRecord]:
    """Go back to the state `before`; the round that showed the harm counts, and moves nothing.

    The method forgets the culprit: what it sent in rounds that were not undone may do harm later.
    """
    undone = before.round + 1  # rounds may have been skipped since
    without = algorithm.forget(before.algorithm_state, culprit)
    note = f"round {undone} is undone: {reason}; {culprit} is not asked any more in {arm}"
    after = replace(
        before,
        round=state.round + 1,
        algorithm_state=checked_state(without, before, arm, "forget"),
        weights={**before.weights, culprit: 0.0},
        skipped_in_a_row=0,
        distrusted={**before.distrusted, culprit: f"round {undone}: {reason}"},
    )
    records = _records(answers, state.weights, {**state.weights, **after.weights})
    return after, RoundRecord(arm, after.round, "skipped", note, records, undoes=undone)


def _skip(
    state: RunState, answers: Mapping[HospitalName, Answer], arm: str, reason: str
) -> tuple[RunState, RoundRecord]:
    after = replace(state, round=state.round + 1, skipped_in_a_row=state.skipped_in_a_row + 1)
    records = _records(answers, state.weights, after.weights)
    return after, RoundRecord(arm, after.round, "skipped", reason, records)


def _records(
    answers: Mapping[HospitalName, Answer],
    before: Mapping[HospitalName, float],
    after: Mapping[HospitalName, float],
) -> dict[HospitalName, HospitalRecord]:
    """A record of every hospital that was asked or has a weight."""
    asked = {
        agent: _record(answer, before.get(agent), after.get(agent))
        for agent, answer in answers.items()
    }
    silent = {
        agent: HospitalRecord("not_asked", weight_before=weight, weight_after=after[agent])
        for agent, weight in before.items()
        if agent not in answers
    }
    return asked | silent


def _record(answer: Answer, before: float | None, after: float | None) -> HospitalRecord:
    match answer:
        case Update():
            return HospitalRecord(
                "accepted",
                weight_before=before,
                weight_after=after,
                num_samples=answer.num_samples,
                samples_seen=answer.samples_seen,
            )
        case SiteAnswer():
            return HospitalRecord("accepted", weight_before=before, weight_after=after)
        case Rejection(reason):
            return HospitalRecord("rejected", reason, weight_before=before, weight_after=after)
        case Absence(reason):
            return HospitalRecord("absent", reason, weight_before=before, weight_after=after)


def _finite(value: float | None) -> float | None:
    return None if value is None or value == float("inf") else value
