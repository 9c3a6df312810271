"""One round without any input or output: from the hospitals' answers to the next state and record.

    round_ = Round(state, method, ...)
    while round_.request is not None:
        round_.answer({hospital: answer, ...})
    after, record = round_.outcome

The coordinator, simulations and `erosion.flower` share it.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import ceil, inf
from typing import Any

from torch import Tensor

from erosion_common.aggregation.cohort import Cohort, HospitalName, MemoryCohort, Update
from erosion_common.aggregation.vectors import is_finite
from erosion_common.algorithms.base import Algorithm, Answers, Ask, RoundStart, SiteAnswer, Step
from erosion_common.errors import ErosionError
from erosion_common.rounds.checked_step import (
    checked_ask,
    checked_first,
    checked_state,
    checked_step,
    fault_of_rule,
)
from erosion_common.rounds.records import (
    Absence,
    Answer,
    HospitalRecord,
    Rejection,
    RoundRecord,
    RunState,
)
from erosion_common.settings.packages import blamed
from erosion_common.support.text import most_said

logger = logging.getLogger("erosion.round")


def first_state(method: Algorithm[Any], params: Tensor, arm: str = "") -> RunState:
    """Returns the state before the first round. Raises RunError for a wrong method."""
    return RunState(0, params, checked_first(method.init(len(params)), arm))


class Round:
    """The exchanges of one round, one after another.

    Without a usable answer of the user's, or below the quorum, the round is skipped: it is recorded
    and the parameters stay. The quorum counts those that should have been heard and were not;
    hospitals that the method does not ask count as present.
    """

    def __init__(
        self,
        state: RunState,
        method: Algorithm[Any],
        started: RoundStart,
        *,
        arm: str,
        wanted: Sequence[HospitalName],
        spare: int,
        cohort_of: Callable[[Update, Mapping[HospitalName, Update]], Cohort] = MemoryCohort,
    ) -> None:
        """Starts the round, of which up to `spare` of the hospitals `wanted` may be missing."""
        self._state, self._started, self._arm = state, started, arm
        self._wanted, self._spare, self._cohort_of = wanted, spare, cohort_of
        self._method = method.begin(state.algorithm_state, started)
        self._answers: dict[HospitalName, Answer] = {}  # the last of each hospital
        self._superseded: dict[HospitalName, Update] = {}  # by a failure that the method tolerates
        self._lost: set[HospitalName] = set()  # did not answer the last time
        self._cohort: Cohort | None = None
        self.number = 0  # of the exchange, from 1
        self.request: Ask | None = None  # what is asked now; None: the round has ended
        self.asked: list[HospitalName] = []  # that the request goes to
        self.outcome: tuple[RunState, RoundRecord]  # the state after the round, once it has ended
        self._resume(None)

    def answer(self, answers: Mapping[HospitalName, Answer]) -> None:
        """Continues with an answer, or the reason for its absence, of every hospital in `asked`."""
        assert self.request is not None
        request, asked = self.request, self.asked
        answers = {name: answers[name] for name in asked}
        usable = {n: a for n, a in answers.items() if isinstance(a, Update | SiteAnswer)}
        if request.any_number:
            self._superseded |= {
                name: update
                for name in answers.keys() - usable.keys()
                if isinstance(update := self._answers.get(name), Update)
            }
        self._answers |= {
            name: answer
            for name, answer in answers.items()
            if not (isinstance(answer, SiteAnswer) and isinstance(self._answers.get(name), Update))
        }
        self._lost = (self._lost | set(asked)) - usable.keys()
        _, reason = self.shortfall(answers)
        if reason:
            self._method.close()
            self.request = None
            self.outcome = _skipped(self._state, self._answers, self._arm, reason)
            return
        if request.expects.update:
            updates = {n: a for n, a in usable.items() if isinstance(a, Update)}
            self._cohort = self._cohort_of(updates.pop(self._started.user), updates)
        self._resume(
            Answers(
                replies={n: a for n, a in usable.items() if isinstance(a, SiteAnswer)},
                missing={
                    n: a.reason for n, a in answers.items() if isinstance(a, Rejection | Absence)
                },
                updates=self._cohort if request.expects.update else None,
            )
        )

    def _resume(self, answers: Answers | None) -> None:
        known = {*self._wanted, *self._started.hospitals, *self._answers, *self._state.weights}
        self.number += 1
        try:
            request = self._asked_next(answers)
            self.request = checked_ask(request, self._started, known, self._arm, self.number)
        except StopIteration as end:
            # A hospital may have failed in an exchange after the one that brought its update.
            cohort = self._cohort if self.request and self.request.expects.update else None
            step = checked_step(end.value, self._state, cohort, known, self._arm)
            self.request, self.outcome = None, self._conclude(step)
        except (ErosionError, OSError):
            raise
        except (Exception, SystemExit) as problem:  # a method may be of somebody else's package
            logger.info("the rule of %r failed", self._arm, exc_info=True)  # for -v
            raised = f"it raised {type(problem).__name__}: {problem}; -v shows where"
            if where := blamed(problem):
                raised = f"{raised}. {where}"
            raise fault_of_rule(self._arm, self._state.round + 1, raised) from problem
        else:
            asked = self.request.hospitals
            wanted = (name for name in self._wanted if name not in self._lost)
            self.asked = list(wanted if asked is None else asked)

    def _asked_next(self, answers: Answers | None) -> Ask:
        before = self._versions()
        try:
            return next(self._method) if answers is None else self._method.send(answers)
        finally:
            if self._versions() != before:
                problem = (
                    "it changed the parameters or an update in place; let it work on a clone()"
                )
                raise fault_of_rule(self._arm, self._state.round + 1, problem)

    def _versions(self) -> list[int]:
        """Return how often each tensor that the rule was given was changed in place."""
        updates = () if self._cohort is None else self._cohort.updates
        given = (self._state.params, *(update.delta for update in updates))
        return [0 if t.is_inference() else t._version for t in given]  # noqa: SLF001

    def _conclude(self, step: Step[Any]) -> tuple[RunState, RoundRecord]:
        state, cohort, answers, note = self._state, self._cohort, self._answers, step.note
        if step.outcome == "done":
            rejected = (
                f"the last answer of {name} was rejected: {last.reason}"
                for name in self._superseded
                if isinstance(last := answers[name], Rejection)
            )
            note = "; ".join(filter(None, (note, *rejected)))
            answers = answers | self._superseded
        params = state.params + step.delta if step.outcome == "done" else state.params
        if not is_finite(params):
            reason = "the aggregate of finite updates is not finite"
            return _skipped(state, answers, self._arm, reason)
        distances: dict[HospitalName, float] = {}
        directions: dict[HospitalName, float] = {}
        if cohort is not None:
            measured = step.distances
            if measured is None:
                apart = cohort.distances_to_own().tolist()
                measured = dict(zip(cohort.peers, apart, strict=True))
            distances = {**measured, cohort.own.agent: 0.0}
            is_first = state.round == state.skipped_in_a_row  # no round was done before
            directions = _directions(cohort) if is_first else {}
        after = replace(
            state,
            round=state.round + 1,
            params=params,
            algorithm_state=step.state,
            weights={**state.weights, **step.weights, **dict.fromkeys(state.distrusted, 0.0)},
            skipped_in_a_row=state.skipped_in_a_row + 1 if step.outcome == "skipped" else 0,
            stopped=step.outcome == "stopped",
        )
        answers = {
            **answers,
            **{name: Rejection(why, "rule") for name, why in step.rejected.items()},
        }
        records = {
            name: replace(
                record,
                distance=None if (found := distances.get(name, inf)) == inf else found,
                direction=directions.get(name),
            )
            for name, record in _records(answers, state, after.weights).items()
        }
        return after, RoundRecord(self._arm, after.round, step.outcome, note, records)

    def shortfall(self, answers: Mapping[HospitalName, Answer]) -> tuple[int, str]:
        """Returns how many of `asked` must give usable answers, and why these do not suffice.

        0 and "" if they do.
        """
        assert self.request is not None
        own = answers.get(self._started.user)
        missing = [a.reason for a in answers.values() if isinstance(a, Rejection | Absence)]
        usable = len(answers) - len(missing)
        needed = max(1, len(answers.keys() | self._lost) - self._spare)
        if self.request.any_number:
            needed = 1
        if isinstance(own, Rejection):
            return needed, f"the user's own update was rejected: {own.reason}"
        if isinstance(own, Absence):
            return needed, f"the user's own site is absent: {own.reason}"
        if self.request.any_number or usable >= needed:
            return 0, ""
        what = f"{usable} usable answers to {self.request.step!r}, {needed} are needed"
        if self.request.expects.update:
            what = f"{usable} usable updates, {needed} are needed (federation.quorum)"
        return needed, what + most_said(missing)


def _directions(cohort: Cohort) -> dict[HospitalName, float]:
    """Returns the cosine of each peer's update with the user's, if both are seen and not 0."""
    if any(update.hello is not None for update in cohort.updates):
        return {}  # nobody sees those of a sealed round
    own, *norms = cohort.norms().tolist()
    relative = cohort.distances_to_own().tolist()
    return {
        name: max(-1.0, min(1.0, (norm**2 + own**2 - (apart * own) ** 2) / (2 * norm * own)))
        for name, norm, apart in zip(cohort.peers, norms, relative, strict=True)
        if own > 0 and norm > 0
    }


def _skipped(
    state: RunState, answers: Mapping[HospitalName, Answer], arm: str, reason: str
) -> tuple[RunState, RoundRecord]:
    """Counts the round and moves nothing."""
    after = replace(state, round=state.round + 1, skipped_in_a_row=state.skipped_in_a_row + 1)
    records = _records(answers, state, after.weights)
    return after, RoundRecord(arm, after.round, "skipped", reason, records)


def undone(
    state: RunState,
    before: RunState,
    method: Algorithm[Any],
    answers: Mapping[HospitalName, Answer],
    *,
    arm: str,
    outlier: HospitalName,
    reason: str,
) -> tuple[RunState, RoundRecord]:
    """Goes back to the state `before`: skips this round, and has the method forget the outlier."""
    number = before.round + 1  # rounds may have been skipped since
    without = method.forget(before.algorithm_state, outlier)
    note = f"round {number} is undone: {reason}; {outlier} is not asked any more in {arm}"
    after = replace(
        before,
        round=state.round + 1,
        algorithm_state=checked_state(without, before, arm, "forget"),
        weights={**before.weights, outlier: 0.0},
        skipped_in_a_row=0,
        distrusted={**before.distrusted, outlier: f"round {number}: {reason}"},
    )
    records = _records(answers, state, {**state.weights, **after.weights})
    return after, RoundRecord(arm, after.round, "skipped", note, records, undoes=number)


def _records(
    answers: Mapping[HospitalName, Answer], before: RunState, after: Mapping[HospitalName, float]
) -> dict[HospitalName, HospitalRecord]:
    records = {}
    for name in dict.fromkeys((*answers, *before.weights)):
        match answers.get(name):
            case Update(num_samples=counted, samples_seen=seen):
                record = HospitalRecord(
                    "accepted", num_samples=ceil(counted), samples_seen=ceil(seen)
                )
            case SiteAnswer():
                record = HospitalRecord("accepted")
            case Rejection(reason, code):
                record = HospitalRecord("rejected", reason, code=code)
            case Absence(reason, left_out=left_out):
                record = HospitalRecord("absent", reason, left_out=left_out)
            case None:
                record = HospitalRecord("not_asked")
        records[name] = replace(
            record, weight_before=before.weights.get(name), weight_after=after.get(name)
        )
    return records
