"""A study from the first hospital to the figures. Read it from top to bottom.

run_study   who is here -> data check and scaling -> trials -> folds -> every arm -> final figures
            -> the delivered model at other hospitals, where the study asks for that
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from torch import Tensor

from erosion_common.aggregation.cohort import HospitalName
from erosion_common.errors import DivergedError, RunError
from erosion_common.learning.finished import Predictor
from erosion_common.learning.models import check_model
from erosion_common.protocol.messages import EvaluateReply, EvaluateResult, Summary
from erosion_common.rounds.arm import arms_of, initial_state
from erosion_common.rounds.context import Decisions, RunContext
from erosion_common.rounds.data_check import DataCheck, completed, data_check
from erosion_common.rounds.driver import check_has_model, run_arm
from erosion_common.rounds.evaluation import evaluate
from erosion_common.rounds.events import ArmFinished, ArmStarted, HospitalsCompared
from erosion_common.rounds.records import RoundRecord, RunState
from erosion_common.rounds.selection import (
    Curve,
    SelectedSettings,
    choose,
    chosen,
    fold_studies,
    mean_curves,
)
from erosion_common.rounds.validation import Validated, validate
from erosion_common.study.study import Study

CROSS_FITTING = "cross-fitting"  # what the folds are displayed as


@dataclass(frozen=True, slots=True)
class StudyOutcome:
    """What a study ends with."""

    study: Study  # as it was run: nothing is left to be selected
    finals: Mapping[str, RunState]  # by arm
    records: Mapping[str, list[RoundRecord]]  # by arm
    in_folds: Sequence[RoundRecord]  # the rounds of a cross-fitted evaluation
    evaluated: EvaluateResult
    choices: Mapping[str, SelectedSettings]  # by arm
    data_check: DataCheck
    summaries: Mapping[HospitalName, Summary]  # of the hospitals that described their columns
    validation: Mapping[HospitalName, Validated]  # where others measured the delivered model

    @property
    def evaluation(self) -> EvaluateReply:
        """The user's final figures."""
        return self.evaluated.header

    @property
    def personal(self) -> Mapping[str, Tensor]:
        """By arm, the user's own parameters where they are not the final ones."""
        return self.evaluated.personal

    @property
    def predictors(self) -> Mapping[str, Predictor]:
        """By arm, what the user predicts with."""
        return {arm: self.evaluated.predictor(arm, s.params) for arm, s in self.finals.items()}


def run_study(ctx: RunContext) -> StudyOutcome:
    """Runs every arm and evaluates. Raises RunError, and ModelError before anyone is asked."""
    check_start(ctx.study, ctx.weights)
    decisions = ctx.store.decisions()
    if decisions is not None:
        ctx.presence.cohort = decisions.cohort
    ctx.presence.wait_for_start(resumed=decisions is not None)
    if decisions is None:
        compared = _data_check(ctx)
        decisions = Decisions(ctx.pooled_scaling(), {}, ctx.presence.cohort, compared)
        ctx.store.decide(ctx.study, decisions)
    else:
        ctx.emit(HospitalsCompared(decisions.data_check))
    ctx = replace(ctx, scaling=decisions.scaling)
    if not decisions.choices:
        decisions = replace(decisions, choices=_select(ctx))
        ctx.store.decide(ctx.study, decisions)
    ctx = replace(ctx, study=chosen(ctx.study, decisions.choices))
    rounds = {arm: choice.rounds for arm, choice in decisions.choices.items()}
    curves = _cross_fit(ctx, rounds)
    finals, records = {}, {}
    for arm in arms_of(ctx):
        ctx.emit(ArmStarted(arm.name, rounds[arm.name]))
        run_arm(ctx, arm, rounds[arm.name], curves.get(arm.name, ()))
        check_has_model(arm)
        ctx.emit(ArmFinished(arm.name))
        finals[arm.name], records[arm.name] = arm.state, arm.records
    evaluated = evaluate(ctx, finals)
    compared = completed(decisions.data_check, ctx.study, records, evaluated.header.arms)
    members, choices = ctx.presence.members, decisions.choices
    summaries = {
        name: member.summary
        for name, member in members.items()
        if member.summary is not None and name in decisions.data_check.compared
    }
    validated = validate(ctx, finals, records, evaluated)
    in_folds = () if ctx.study.evaluation.folds is None else ctx.store.rounds_in_folds()
    return StudyOutcome(
        ctx.study, finals, records, in_folds, evaluated, choices, compared, summaries, validated
    )


def check_start(study: Study, weights: Path | None) -> None:
    """Raises ModelError if the study's model is not available here, before anybody waits."""
    study.check_model()
    if study.model.is_tried_out:
        check_model(study.model, study.task.input_shape, study.task.num_outputs)
    if study.model.pretrained is not None:
        initial_state(study, next(iter(study.arms)), weights)


def _data_check(ctx: RunContext) -> DataCheck:
    """Compares the hospitals' figures of their columns. Raises RunError if the study ends so."""
    found = data_check(ctx.study, {name: m.summary for name, m in ctx.presence.members.items()})
    ctx.emit(HospitalsCompared(found))
    if ctx.study.federation.stop_on_misfit and found.misfits:
        raise RunError(
            "Hospitals' figures do not fit the others', and the study ends there"
            f" (federation.stop_on_misfit): {' '.join(found.sentences)}",
            remedy=f"Correct the data or the site files, or leave stop_on_misfit out. {ctx.remedy}",
        )
    return found


def _select(ctx: RunContext) -> dict[str, SelectedSettings]:
    """Returns what every arm is run with, after trials if the study leaves it open."""
    numbers = count()
    finished = ctx.store.finished_folds() if ctx.study.selection is not None else ()

    def run_trial(trial: Study, num_rounds: int) -> Curve:
        number = next(numbers)
        if number < len(finished):
            (curve,) = finished[number].values()
            return curve
        inner = replace(ctx, study=trial, store=ctx.store.of_fold(number), is_trial=True)
        (arm,) = arms_of(inner)
        ctx.emit(ArmStarted(arm.name, num_rounds, is_trial=True))
        with suppress(DivergedError):  # the rounds before that count
            run_arm(inner, arm, num_rounds)
        curve = [record.user_metrics for record in arm.records]
        ctx.store.keep_fold({arm.name: curve})
        return curve

    return {arm: choose(ctx.study, arm, run_trial) for arm in ctx.study.arms}


def _cross_fit(ctx: RunContext, rounds: Mapping[str, int]) -> Mapping[str, Curve]:
    """Returns cross-fitted metrics by arm and round; {} for a study without folds."""
    every = fold_studies(ctx.study)
    if not every:
        return {}
    finished, each = list(ctx.store.finished_folds()), sum(rounds.values())
    title = f"{len(every)} folds, each a run of {len(rounds)} arms"
    ctx.emit(ArmStarted(CROSS_FITTING, len(every) * each, is_trial=True, trial=title))
    for number in range(len(finished), len(every)):
        store = ctx.store.of_fold(number)
        inner = replace(ctx, study=every[number], store=store, is_trial=True)
        finals, curves, played = {}, {}, number * each
        for arm in arms_of(inner):
            run_arm(inner, arm, rounds[arm.name], shown_as=_after(played))
            check_has_model(arm, " in a fold")
            finals[arm.name] = arm.state
            curves[arm.name] = [record.user_metrics for record in arm.records]
            played += rounds[arm.name]
        evaluate(inner, finals)
        ctx.store.keep_fold(curves)
        finished.append(curves)
    return mean_curves(finished, rounds, ctx.study.evaluation.repeats)


def _after(played: int) -> Callable[[RoundRecord], RoundRecord]:
    """Numbers rounds on over all folds; one arm's weights in one fold would say little."""

    def shown(record: RoundRecord) -> RoundRecord:
        hospitals = {
            name: replace(entry, weight_before=None, weight_after=None)
            for name, entry in record.hospitals.items()
        }
        number = played + record.round
        return replace(record, round=number, hospitals=hospitals, user_metrics=None)

    return shown
