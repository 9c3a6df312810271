"""A study from the first hospital's arrival to the figures: the same over every transport."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from torch import Tensor

from erosion.common.aggregation.cohort import HospitalName
from erosion.common.errors import RunError
from erosion.common.learning.models import check_model, first_parameters
from erosion.common.protocol.messages import EvaluateReply, EvaluateResult, Metrics, Scaling
from erosion.common.protocol.scaling import pool
from erosion.common.rounds import one_round
from erosion.common.rounds.arm_algorithm import algorithm_of
from erosion.common.rounds.arm_run import ArmRun, Storage, play
from erosion.common.rounds.cross_fitting import Curves, fold_studies, mean_curves
from erosion.common.rounds.membership import LOOK_SECONDS, Membership, MembershipListener
from erosion.common.rounds.model_selection import SelectedSettings, choose, chosen
from erosion.common.rounds.one_round import Absence, Rejection, RoundRecord, RunState, Terms
from erosion.common.rounds.screening import problem_with_evaluation
from erosion.common.rounds.transport import Transport
from erosion.common.rounds.waiting import (
    HospitalsAwayError,
    Needed,
    UserDeclinedError,
    Waiting,
    in_words,
)
from erosion.common.sealed.coordinator_keys import CoordinatorKeys
from erosion.common.sealed.sum_records import SumRecords
from erosion.common.study.study import Study

CROSS_FITTING = "cross-fitting"  # what the folds of a cross-fitted evaluation are shown as
EVALUATE_SECONDS = 600.0  # bootstrap intervals of every arm, on a slow machine
MOST_EVALUATIONS = 10  # of a user's site whose connection breaks whenever it is asked


class Listener(MembershipListener, Protocol):
    """Is told what happens in a study."""

    def arm_started(
        self, arm: str, rounds: int, *, is_trial: bool = False, title: str = ""
    ) -> None:
        """An arm begins, or a trial of it; `title` says what for, where not for its settings."""

    def round_finished(self, record: RoundRecord, *, is_trial: bool = False) -> None:
        """A round ended: done, skipped, or stopped by the arm's rule."""

    def arm_finished(self, arm: str) -> None:
        """An arm ended."""


@dataclass(frozen=True, slots=True)
class Decisions:
    """What is settled before the first round; a run that goes on needs the same."""

    scaling: Scaling | None  # pooled over the hospitals that were there
    choices: Mapping[str, SelectedSettings]  # by arm
    cohort: frozenset[HospitalName] | None = None  # who takes part in every arm; None: anybody


class Keeper(Protocol):
    """Keeps what a run needs to go on after an interruption."""

    def decided(self) -> Decisions | None:
        """What an earlier start of this run settled; None: there was none."""

    def decide(self, decisions: Decisions) -> None:
        """Keep what was settled."""

    def resume(
        self, study: Study, firsts: Mapping[str, RunState]
    ) -> tuple[Mapping[str, RunState], Sequence[RoundRecord]]:
        """By arm the state after its last finished round, or the given first; and those rounds."""

    def begin_trials(self) -> None:
        """Trials begin; those of an interrupted start are void."""

    def keep_trial_round(self, record: RoundRecord) -> None:
        """Note a trial's round; nothing is resumed from it."""

    def keep_round(self, study: Study, state: RunState, record: RoundRecord) -> None:
        """Keep a finished round: its record first, then the state after it."""

    def finished_folds(self) -> Sequence[Curves]:
        """The folds of a cross-fitted evaluation that an earlier start finished, in their order."""
        ...

    def keep_fold(self, curves: Curves) -> None:
        """Note that one more fold is finished; a run that goes on begins with the next."""

    def sum_records(self, arm: str) -> SumRecords:
        """What a sealed arm's sums are kept in."""
        ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where a study runs."""

    transport: Transport
    listener: Listener
    keeper: Keeper
    play_rounds: Callable[[ArmRun, int, Callable[[RoundRecord], None]], None]
    # carries an arm to so many rounds, or to where its rule stops it, and hands on every record
    storage: Storage = field(default_factory=Storage)
    sealing_keys: CoordinatorKeys = field(default_factory=CoordinatorKeys)
    run: str = ""  # what the sites know the run by
    address: str = ""  # where sites find the coordinator, for messages
    remedy: str = ""  # how to go on with a run that was given up, for messages
    where_states_are: str = ""  # of every arm, for messages
    weights: Path | None = None  # folder with the files that models start from
    longest_wait_seconds: float | None = None  # for hospitals that are needed; None: no end


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a study ends with."""

    study: Study  # as it was run: nothing is left to be selected
    finals: Mapping[str, RunState]  # by arm
    records: Mapping[str, list[RoundRecord]]  # by arm
    evaluated: EvaluateResult
    choices: Mapping[str, SelectedSettings]  # by arm

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
        self._wait_for_hospitals(resumed=decisions is not None)
        if decisions is None:
            scaling = self._pooled_scaling()
            choices = self._choices(scaling)
            decisions = Decisions(scaling, choices, self.membership.cohort)
            keeper.decide(decisions)
        study = chosen(self.study, decisions.choices)
        curves = self._cross_fit(study, decisions)
        finals, records = self._run_arms(study, decisions, curves)
        evaluated = self._evaluate(study, finals, decisions.scaling)
        return Outcome(study, finals, records, evaluated, decisions.choices)

    def _wait_for_hospitals(self, *, resumed: bool) -> None:
        """Until all are here, or the join deadline has passed and those that must be are.

        A hospital that declines is waited for no more. Every arm is then run with the same
        hospitals, unless the study lets others join at any time. A study that is resumed goes on
        with those of them that are there.
        """
        study, members, transport = self.study, self.membership, self.surroundings.transport
        begun = transport.now()
        told: tuple[str, ...] = ()
        deadline = study.federation.join_deadline_seconds
        longest = self.surroundings.longest_wait_seconds
        while True:
            members.refresh()
            if study.user in members.declined:
                raise UserDeclinedError(
                    f"The user's own site {study.user!r} cannot take part:"
                    f" {members.declined[study.user]}."
                )
            waited = transport.now() - begun
            if not members.missing or (waited >= deadline and self._may_begin(resumed=resumed)):
                break
            if waited >= deadline:
                if longest is not None and waited >= longest:
                    raise HospitalsAwayError(self._why_not_begun(waited))
                if told != tuple(members.missing):
                    told = tuple(members.missing)
                    self.surroundings.listener.waits_for(told)
            next_mark = deadline if waited < deadline else longest
            left = LOOK_SECONDS if next_mark is None else next_mark - waited
            transport.wait_for_change(min(LOOK_SECONDS, left))
        if told:
            self.surroundings.listener.waits_for(())
        if len(members.members) < study.federation.quorum:  # the others have declined
            raise RunError(self._why_not_begun(transport.now() - begun))
        if study.federation.join == "at_start" and not resumed:
            members.cohort = frozenset(members.members)
        absent = {n: members.why_away(n) for n in study.hospitals if n not in members.members}
        if absent:
            self.surroundings.listener.begun_without(absent)

    def _may_begin(self, *, resumed: bool) -> bool:
        """The join deadline has passed: are those here that the study cannot begin without?"""
        study, here = self.study, self.membership.members
        enough = study.user in here and len(here) >= study.federation.quorum
        return enough and (resumed or study.federation.start == "quorum")

    def _why_not_begun(self, waited: float) -> str:
        study, members = self.study, self.membership
        if study.user in members.undecided and study.user not in members.members:
            return (
                f"The user's own site did not take part within {waited:.0f} s:"
                f" {members.undecided[study.user]}."
            )
        if study.user not in members.members:
            return (
                f"The user's own site {study.user!r} did not connect within {waited:.0f} s."
                f" Start it with `erosion client SITE.toml`{self._whereto()}."
            )
        if len(members.members) < study.federation.quorum:
            return (
                f"{len(members.members)} hospitals connected within {waited:.0f} s, the study's"
                f" quorum is {study.federation.quorum}."
                f" Missing: {in_words(members.missing) or 'none'};"
                f" declined: {in_words([*members.declined]) or 'none'};"
                f" not approved yet: {in_words([*members.undecided]) or 'none'}."
            )
        return (
            f"{in_words(members.missing)} did not connect within {waited:.0f} s, and the study"
            " waits for all of its hospitals, so that every arm is compared on the same ones."
            " Start their sites, raise federation.longest_wait_seconds, or begin without them:"
            ' federation.start = "quorum" in the study file, or `erosion server'
            " --start-with-quorum`."
        )

    def _whereto(self) -> str:
        address = self.surroundings.address
        return f", where coordinator.address is {address!r}" if address else ""

    def _pooled_scaling(self) -> Scaling | None:
        if self.study.scaling != "federated":
            return None
        members = self.membership.members
        sums = [members[name].sums for name in sorted(members)]
        users = members[self.study.user].sums
        return pool([s for s in sums if s is not None], self.study.task, users)

    def _choices(self, scaling: Scaling | None) -> dict[str, SelectedSettings]:
        """What every arm is run with; where the study leaves it open, after trials."""
        where = self.surroundings
        if self.study.selection is not None:
            where.keeper.begin_trials()

        def run_trial(trial: Study, num_rounds: int) -> list[RoundRecord]:
            records: list[RoundRecord] = []

            def note(record: RoundRecord) -> None:
                records.append(record)
                where.keeper.keep_trial_round(record)
                where.listener.round_finished(record, is_trial=True)

            (arm,) = trial.arms
            where.listener.arm_started(arm, num_rounds, is_trial=True)
            arm_run = self._arm_run(trial, arm, scaling, first_state(trial, arm, where.weights))
            where.play_rounds(arm_run, num_rounds, note)
            return records

        return {arm: choose(self.study, arm, run_trial) for arm in self.study.arms}

    def _cross_fit(self, study: Study, decisions: Decisions) -> dict[str, list[Metrics]]:
        """Run every arm without each fold's patients, who are predicted; metrics by round.

        Each fold is a whole run; one that was interrupted begins anew.
        """
        where, every = self.surroundings, fold_studies(study)
        if not every:
            return {}
        finished = list(where.keeper.finished_folds())
        rounds = {arm: choice.rounds for arm, choice in decisions.choices.items()}
        each = sum(rounds.values())
        what = f"{len(every)} folds, each a run of {len(rounds)} arms"
        where.listener.arm_started(CROSS_FITTING, len(every) * each, is_trial=True, title=what)
        for number, fold in enumerate(every[len(finished) :], start=len(finished)):
            played = number * each
            finals, curves = {}, {}
            for arm, num_rounds in rounds.items():
                state, curve = self._fold_rounds(fold, arm, num_rounds, decisions.scaling, played)
                finals[arm], curves[arm] = state, curve
                played += num_rounds
            self._evaluate(fold, finals, decisions.scaling)
            where.keeper.keep_fold(curves)
            finished.append(curves)
        return mean_curves(finished, rounds)

    def _fold_rounds(
        self, fold: Study, arm: str, num_rounds: int, scaling: Scaling | None, played: int
    ) -> tuple[RunState, list[Metrics | None]]:
        """An arm without a fold's patients; `played` rounds of other folds and arms came before."""
        where = self.surroundings
        curve: list[Metrics | None] = []

        def note(record: RoundRecord) -> None:
            curve.append(record.user_metrics)
            where.keeper.keep_trial_round(record)
            # Weights and figures of one arm in one fold would say little among all the others.
            hospitals = {
                name: replace(entry, weight_before=None, weight_after=None)
                for name, entry in record.hospitals.items()
            }
            number = played + record.round
            shown = replace(record, round=number, hospitals=hospitals, user_metrics=None)
            where.listener.round_finished(shown, is_trial=True)

        arm_run = self._arm_run(fold, arm, scaling, first_state(fold, arm, where.weights))
        where.play_rounds(arm_run, num_rounds, note)
        return arm_run.state, curve

    def _run_arms(
        self, study: Study, decisions: Decisions, curves: Mapping[str, Sequence[Metrics]]
    ) -> tuple[dict[str, RunState], dict[str, list[RoundRecord]]]:
        where = self.surroundings
        firsts = {arm: first_state(study, arm, where.weights) for arm in study.arms}
        states, finished = where.keeper.resume(study, firsts)
        records: dict[str, list[RoundRecord]] = {arm: [] for arm in study.arms}
        for record in finished:
            records[record.arm].append(record)
        finals = {}
        for arm, choice in decisions.choices.items():
            arm_run = self._arm_run(study, arm, decisions.scaling, states[arm])

            def note(record: RoundRecord, arm_run: ArmRun = arm_run) -> None:
                curve = curves.get(record.arm, ())
                if record.round <= len(curve):  # no patient is set aside, so the round has none
                    record = replace(record, user_metrics=curve[record.round - 1])
                where.keeper.keep_round(study, arm_run.state, record)
                records[record.arm].append(record)
                where.listener.round_finished(record)

            where.listener.arm_started(arm, choice.rounds)
            where.play_rounds(arm_run, choice.rounds, note)
            where.listener.arm_finished(arm)
            finals[arm] = arm_run.state
        return finals, records

    def _arm_run(self, study: Study, arm: str, scaling: Scaling | None, state: RunState) -> ArmRun:
        where = self.surroundings
        return ArmRun(
            Terms(study, arm, scaling, where.run),
            state,
            self.membership,
            where.transport,
            storage=where.storage,
            waiting=self.waiting,
            remedy=where.remedy,
            sum_records=where.keeper.sum_records(arm),
            sealing_keys=where.sealing_keys,
        )

    def _evaluate(
        self, study: Study, finals: Mapping[str, RunState], scaling: Scaling | None
    ) -> EvaluateResult:
        """Ask the user's site for the final figures; it may take a moment to come back first."""
        where, user = self.surroundings, study.user
        request = one_round.evaluate_request(study, finals, scaling=scaling, run=where.run)
        problem = "it was not connected"
        for _ in range(MOST_EVALUATIONS):
            self.waiting.until_here(Needed([user], 1))
            connection = self.membership.members[user].connection
            (reply,) = where.transport.ask({connection: request}, EVALUATE_SECONDS)
            match reply.content:
                case EvaluateResult() as result:
                    is_fold = study.fold is not None
                    wrong = problem_with_evaluation(result, user, finals, is_fold=is_fold)
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
    start = first_parameters(study.model, task.input_shape, task.num_outputs, study.seed, weights)
    return one_round.start(algorithm_of(study, arm), start)


def play_in_turn(
    transport: Transport,
) -> Callable[[ArmRun, int, Callable[[RoundRecord], None]], None]:
    """The rounds of an arm over a transport, one after another."""

    def play_rounds(run: ArmRun, num_rounds: int, on_round: Callable[[RoundRecord], None]) -> None:
        while not run.is_over(num_rounds):
            record = play(run, transport)
            on_round(record)
            run.raise_if_hopeless(record)

    return play_rounds
