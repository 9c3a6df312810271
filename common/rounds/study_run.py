"""A study from the first hospital's arrival to the figures: the same over every transport."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

from torch import Tensor

from erosion.common.aggregation.cohort import HospitalName
from erosion.common.errors import HopelessError, RunError
from erosion.common.learning.models import check_model, first_parameters
from erosion.common.protocol.messages import EvaluateReply, EvaluateResult, Metrics, Scaling
from erosion.common.protocol.scaling import pool
from erosion.common.rounds.arm_algorithm import Sealing, algorithm_of
from erosion.common.rounds.arm_run import ArmRun, play
from erosion.common.rounds.arrival import Arrival
from erosion.common.rounds.checked_figures import problem_with_evaluation
from erosion.common.rounds.data_check import DataCheck, completed, data_check
from erosion.common.rounds.fold_runs import FoldRuns
from erosion.common.rounds.membership import Membership
from erosion.common.rounds.model_selection import SelectedSettings, choose, chosen
from erosion.common.rounds.one_round import start
from erosion.common.rounds.records import Absence, Rejection, RoundRecord, RunState
from erosion.common.rounds.requests import Terms, evaluate_request
from erosion.common.rounds.screening import sample_cap
from erosion.common.rounds.surroundings import ArmsKeeper, Decisions, PlayRounds, Surroundings
from erosion.common.rounds.transport import Transport
from erosion.common.rounds.waiting import Needed, Waiting
from erosion.common.study.study import Study

EVALUATE_SECONDS = 600.0  # for the final figures and local references, and for each arm what it
# needs
CHOOSING_SHARE = 0.5  # of a round's deadline, for a round of the arm that trains alone in all folds
RESAMPLE_SECONDS = 1e-5  # for a patient of a resample: several times what it takes
LONGEST_EVALUATION = 86_400.0  # however many patients a site says that it has
MOST_EVALUATIONS = 10  # of a user's site whose connection breaks whenever it is asked


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a study ends with."""

    study: Study  # as it was run: nothing is left to be selected
    finals: Mapping[str, RunState]  # by arm
    records: Mapping[str, list[RoundRecord]]  # by arm
    evaluated: EvaluateResult
    choices: Mapping[str, SelectedSettings]  # by arm
    data_check: DataCheck

    @property
    def evaluation(self) -> EvaluateReply:
        """The user's final figures."""
        return self.evaluated.header

    @property
    def personal(self) -> Mapping[str, Tensor]:
        """By arm, what the user predicts with where that is other than the final parameters."""
        return self.evaluated.personal


@dataclass(slots=True)
class StudyRun:
    """Runs one study for one user."""

    study: Study
    surroundings: Surroundings
    membership: Membership = field(init=False)
    waiting: Waiting = field(init=False)

    def __post_init__(self) -> None:
        """Nobody is there yet."""
        where = self.surroundings
        self.membership = Membership(self.study, where.transport, where.listener)
        self.waiting = Waiting(
            self.study,
            self.membership,
            where.transport,
            where.listener,
            longest_seconds=where.longest_wait_seconds,
            remedy=where.remedy,
        )

    def run(self) -> Outcome:
        """Run every arm and evaluate. Raises RunError, and ModelError before anyone is asked."""
        check_start(self.study, self.surroundings.weights)
        keeper = self.surroundings.keeper
        decisions = keeper.decided()
        if decisions is not None:
            self.membership.cohort = decisions.cohort
        Arrival(self.study, self.membership, self.surroundings).wait(resumed=decisions is not None)
        if decisions is None:
            compared = self._data_check()
            decisions = Decisions(self._pooled_scaling(), {}, self.membership.cohort, compared)
            keeper.decide(self.study, decisions)
        else:
            self.surroundings.listener.checked(decisions.data_check)
        if not decisions.choices:
            decisions = replace(decisions, choices=self._choices(decisions.scaling))
            keeper.decide(self.study, decisions)
        study = chosen(self.study, decisions.choices)
        curves = self._fold_runs(decisions).curves(study)
        finals, records = self._run_arms(study, decisions, curves)
        evaluated = self._evaluate(study, finals, decisions.scaling)
        compared = completed(decisions.data_check, study, records, evaluated.header.arms)
        return Outcome(study, finals, records, evaluated, decisions.choices, compared)

    def _data_check(self) -> DataCheck:
        """Compare what the hospitals tell of their columns. Raises RunError if it is to end so."""
        members = self.membership.members
        found = data_check(self.study, {name: m.summary for name, m in members.items()})
        self.surroundings.listener.checked(found)
        if self.study.federation.stop_on_misfit and found.misfits:
            raise RunError(
                "Hospitals' figures do not fit the others', and the study ends there"
                f" (federation.stop_on_misfit): {' '.join(found.sentences)} Correct the data or"
                f" the site files, or leave stop_on_misfit out.{self.surroundings.remedy}"
            )
        return found

    def _pooled_scaling(self) -> Scaling | None:
        if self.study.scaling not in ("federated", "user"):
            return None
        members = self.membership.members
        sums = [members[name].sums for name in sorted(members)]
        users = members[self.study.user].sums
        return pool([s for s in sums if s is not None], self.study.task, users)

    def _choices(self, scaling: Scaling | None) -> dict[str, SelectedSettings]:
        """What every arm is run with; where the study leaves it open, after trials."""
        where, numbers = self.surroundings, count()
        finished = where.keeper.finished_folds() if self.study.selection is not None else ()

        def run_trial(trial: Study, num_rounds: int) -> Sequence[Metrics | None]:
            number = next(numbers)
            if number < len(finished):
                (curve,) = finished[number].values()
                return curve
            keeper = where.keeper.of_fold(number)
            ((arm, arm_run, records),) = self._arms(keeper, trial, scaling)

            def note(record: RoundRecord) -> None:
                records.append(record)
                where.keeper.keep_trial_round(record)
                keeper.keep_round(trial, arm_run.state, record)
                where.listener.round_finished(record, is_trial=True)

            where.listener.arm_started(arm, num_rounds, is_trial=True)
            where.play_rounds(arm_run, num_rounds, note)
            curve = [record.user_metrics for record in records]
            where.keeper.keep_fold({arm: curve})
            return curve

        return {arm: choose(self.study, arm, run_trial) for arm in self.study.arms}

    def _fold_runs(self, decisions: Decisions) -> FoldRuns:
        scaling = decisions.scaling
        return FoldRuns(
            self.surroundings,
            {arm: choice.rounds for arm, choice in decisions.choices.items()},
            lambda keeper, fold: self._arms(keeper, fold, scaling),
            lambda fold, finals: self._evaluate(fold, finals, scaling),
        )

    def _run_arms(
        self, study: Study, decisions: Decisions, curves: Mapping[str, Sequence[Metrics | None]]
    ) -> tuple[dict[str, RunState], dict[str, list[RoundRecord]]]:
        where = self.surroundings
        records: dict[str, list[RoundRecord]] = {}
        finals = {}
        for arm, arm_run, finished in self._arms(where.keeper, study, decisions.scaling):
            records[arm] = finished

            def note(record: RoundRecord, arm_run: ArmRun = arm_run) -> None:
                curve = curves.get(record.arm, ())
                if record.round <= len(curve):  # no patient is set aside, so the round has none
                    record = replace(record, user_metrics=curve[record.round - 1])
                where.keeper.keep_round(study, arm_run.state, record)
                records[record.arm].append(record)
                where.listener.round_finished(record)

            num_rounds = decisions.choices[arm].rounds
            where.listener.arm_started(arm, num_rounds)
            where.play_rounds(arm_run, num_rounds, note)
            if all(record.outcome == "skipped" for record in finished):
                raise HopelessError(
                    f"Every round of {arm} was skipped, so it has no model; the last because"
                    f" {finished[-1].note.removesuffix('.')}. Put that right, then begin a new run."
                )
            where.listener.arm_finished(arm)
            finals[arm] = arm_run.state
        return finals, records

    def _arms(
        self, keeper: ArmsKeeper, study: Study, scaling: Scaling | None
    ) -> Iterator[tuple[str, ArmRun, list[RoundRecord]]]:
        """Every arm in turn, where it was left, and its rounds so far."""
        firsts = {arm: first_state(study, arm, self.surroundings.weights) for arm in study.arms}
        states, finished = keeper.resume(study, firsts)
        for arm, first in firsts.items():
            records = [record for record in finished if record.arm == arm]
            moved = [record.round for record in records if record.outcome == "done"]
            before = keeper.earlier(study, arm, moved[-1] - 1, first) if moved else None
            yield arm, self._arm_run(study, arm, scaling, states[arm], before), records

    def _arm_run(
        self,
        study: Study,
        arm: str,
        scaling: Scaling | None,
        state: RunState,
        before: RunState | None,
    ) -> ArmRun:
        where = self.surroundings
        return ArmRun(
            Terms(study, arm, scaling, where.run),
            state,
            self.membership,
            where.transport,
            storage=where.storage,
            waiting=self.waiting,
            sealing=Sealing(where.keeper.sum_records(arm), where.sealing_keys),
            before=before,
        )

    def _evaluate(
        self, study: Study, finals: Mapping[str, RunState], scaling: Scaling | None
    ) -> EvaluateResult:
        """Ask the user's site for the final figures; it may take a moment to come back first."""
        where, user = self.surroundings, study.user
        request = evaluate_request(study, finals, scaling=scaling, run=where.run)
        problem = "it was not connected"
        spent = 0.0  # seconds in which it was asked: all attempts together have one deadline
        for _ in range(MOST_EVALUATIONS):
            self.waiting.until_here(Needed([user], 1))
            left = evaluate_seconds(study, self._believed_patients(user)) - spent
            if left <= 0:
                break
            begun = where.transport.now()
            connection = self.membership.members[user].connection
            (reply,) = where.transport.ask({connection: request}, left)
            spent += where.transport.now() - begun
            match reply.content:
                case EvaluateResult() as result:
                    wrong = problem_with_evaluation(result, study, finals)
                    if wrong is None:
                        return result
                    problem = wrong
                case Rejection(reason) | Absence(reason):
                    problem = reason
                case other:
                    problem = f"it answered with a {type(other).__name__}"
            if not reply.left:
                break  # it answered that it cannot; asking again would not help
        raise RunError(
            f"The final figures are missing: the user's site {user!r} did not give them"
            f" ({problem}).{where.where_states_are}"
        )

    def _believed_patients(self, user: HospitalName) -> int:
        """The user's training patients; where others wait for it, as many as all others have."""
        described = self.membership.described
        own = described[user]
        return min(own, sample_cap(described, user)) if self.surroundings.every_user else own


def evaluate_seconds(study: Study, num_training: int) -> float:
    """How long the user's site, with so many training patients, may take for the final figures.

    Each arm may train once more, for models of the user alone, and is measured on every resample
    of the patients, and with every cut into folds. So are the base rate and the local references.
    To choose among these, an arm that trains alone does so a few times more.
    """
    asked = study.evaluation
    patients = num_training / (1 - asked.test_share)
    resampling = asked.repeats * asked.bootstrap * patients * RESAMPLE_SECONDS
    trainings = len(study.arms) + (CHOOSING_SHARE * study.rounds if study.references else 0)
    of_arms = trainings * study.federation.round_deadline_seconds
    measured = len(study.arms) + len(study.references) + 2
    needed = EVALUATE_SECONDS + of_arms + measured * resampling
    return min(needed, LONGEST_EVALUATION)


def check_start(study: Study, weights: Path | None) -> None:
    """Raise ModelError where the model of a study is not here, before anybody waits for it."""
    study.check_model()
    task = study.task
    if study.model.is_tried_out:
        check_model(study.model, task.input_shape, task.num_outputs)
    if study.model.pretrained is not None:
        first_state(study, next(iter(study.arms)), weights)


def first_state(study: Study, arm: str, weights: Path | None = None) -> RunState:
    """An arm's state before its first round; `weights`: where files that models start from are.

    Raises ModelError.
    """
    task = study.task
    first = first_parameters(study.model, task.input_shape, task.num_outputs, study.seed, weights)
    return start(algorithm_of(study, arm), first, arm)


def play_in_turn(transport: Transport) -> PlayRounds:
    """The rounds of an arm over a transport, one after another."""

    def play_rounds(run: ArmRun, num_rounds: int, on_round: Callable[[RoundRecord], None]) -> None:
        while not run.is_over(num_rounds):
            record = play(run, transport)
            on_round(record)
            run.raise_if_hopeless(record, num_rounds)

    return play_rounds
