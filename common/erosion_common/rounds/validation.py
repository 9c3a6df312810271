"""The delivered model at other hospitals: asked for as the final figures are, and checked.

A hospital is external to a model that nothing of it was used for. What it measures is computed at
its site, with intervals; here it is only held against what such figures can be.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from erosion_common.aggregation.cohort import HospitalName
from erosion_common.learning.finished import LAYERS, Finished, Predictor
from erosion_common.protocol.messages import (
    Comparison,
    EvaluateReply,
    EvaluateRequest,
    EvaluateResult,
    FinalMetrics,
    Scaling,
)
from erosion_common.protocol.performance import ModelFigures
from erosion_common.rounds.context import RunContext
from erosion_common.rounds.evaluation import (
    RESAMPLE_SECONDS,
    figures_in,
    is_within,
    problem_with_answer,
)
from erosion_common.rounds.presence import Member
from erosion_common.rounds.records import RoundRecord, RunState, counting
from erosion_common.settings.base import Settings
from erosion_common.settings.names import Count
from erosion_common.study.study import Study
from erosion_common.support.text import printable

STEEPEST = 1000.0  # of a calibration slope or an intercept that a site may report
LARGEST_RATIO = 1e6


Role = Literal["external", "trained"]  # "trained": an update of the hospital counted in the model


class Validated(Settings):
    """What one hospital found of the delivered model; or why it found nothing."""

    role: Role
    arm: str  # with the model
    metrics: FinalMetrics | None = None
    class_counts: dict[str, Count | None] = {}  # noqa: RUF012 - rounded
    models: tuple[ModelFigures, ...] = ()  # calibration; of several classes, of each
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Delivered:
    """A model as others apply it."""

    arm: str
    predictor: Predictor
    scaling: Scaling | None
    missing_means: tuple[float, ...] | None


def delivered_arm(arms: Sequence[str], comparison: Comparison | None) -> str:
    """Return the better arm of the comparison, or else the first: the run's model is its."""
    better = ""
    if comparison is not None:
        named = {"better": comparison.arm, "worse": comparison.reference}
        better = named.get(comparison.conclusion, "")
    return better if better in arms else arms[0]


def delivered_scaling(study: Study, arm: str, evaluation: EvaluateReply) -> Scaling | None:
    """Return what a new patient's columns are scaled by for the model of `arm`."""
    own = evaluation.own_scaling
    return own if own is not None and study.arms[arm].user_only else evaluation.scaling


def trained_by(records: Sequence[RoundRecord]) -> set[HospitalName]:
    """Return the hospitals of which an update counted in an arm; one without a weight may have."""
    return {
        name
        for record in counting(records)
        for name, entry in record.hospitals.items()
        if entry.outcome == "accepted" and entry.weight_after != 0.0
    }


def validate(
    ctx: RunContext,
    finals: Mapping[str, RunState],
    records: Mapping[str, Sequence[RoundRecord]],
    evaluated: EvaluateResult,
) -> dict[HospitalName, Validated]:
    """Have every other hospital here measure the delivered model; a refusal ends nothing."""
    if ctx.study.validation is None:
        return {}
    header = evaluated.header
    arm = delivered_arm([*finals], header.comparison)
    model = Delivered(
        arm,
        evaluated.predictor(arm, finals[arm].params),
        delivered_scaling(ctx.study, arm, header),
        header.missing_means,
    )
    others = [name for name in ctx.study.everyone if name != ctx.study.user]
    return measured_at(ctx, others, model, trained_by(records[arm]))


def measured_at(
    ctx: RunContext,
    hospitals: Sequence[HospitalName],
    model: Delivered,
    trained: Collection[HospitalName],
) -> dict[HospitalName, Validated]:
    """Ask these hospitals, and return what each found, or why it did not."""
    study, presence = ctx.study, ctx.presence
    presence.refresh()
    here = {n: presence.members[n] for n in hospitals if n in presence.members}
    whole = model.predictor
    request = EvaluateRequest(
        study,
        {model.arm: whole.parameters if isinstance(whole, Finished) else whole},
        model.scaling,
        ctx.run,
        {model.arm: {LAYERS: whole.layers} if isinstance(whole, Finished) else {}},
        most_reply_bytes=0,
        missing_means=model.missing_means,
    )
    found = {
        name: Validated(
            role="trained" if name in trained else "external",
            arm=model.arm,
            why_not=presence.why_away(name),
        )
        for name in hospitals
    }
    names = {member.connection: name for name, member in here.items()}
    seconds = validation_seconds(study, [member.num_samples for member in here.values()])
    for reply in ctx.channel.ask(dict.fromkeys(names, request), seconds) if names else ():
        if (name := names.get(reply.connection)) is None:
            continue

        problem_with = partial(
            problem_with_validation, study=study, hospital=name, member=here[name], arm=model.arm
        )
        match figures_in(reply, problem_with):
            case EvaluateResult(header):
                measured = {
                    "metrics": header.arms[model.arm],
                    "class_counts": header.class_counts,
                    "models": header.performance.models,
                    "why_not": "",
                }
            case why:
                measured = {"why_not": printable(why) or "no reason given"}
        found[name] = found[name].model_copy(update=measured)
    return found


def validation_seconds(study: Study, num_patients: Sequence[int]) -> float:
    """Return how long hospitals with these patients may take: a round, and the resampling."""
    resampling = study.evaluation.bootstrap * max(num_patients, default=0) * RESAMPLE_SECONDS
    return study.federation.round_deadline_seconds + 2 * resampling


def problem_with_validation(
    result: EvaluateResult, study: Study, hospital: HospitalName, member: Member, arm: str
) -> str | None:
    """Return why a hospital's figures of the model of `arm` cannot be used, or None."""
    header = result.header
    if problem := problem_with_answer(header, study, hospital):
        return problem
    if [*header.arms] != [arm] or header.references or header.comparison or result.personal:
        return "its answer is not of the one model that it was asked about"
    metrics, models = header.arms[arm], header.performance.models
    counts = [metrics.num_patients, *(model.num_patients for model in models)]
    known = None if member.summary is None else member.summary.num_patients
    if min(counts) < 1 or len({*counts, *([] if known is None else [known])}) > 1:
        return "it measured the model on other numbers of patients than it described"
    cell = 0 if member.summary is None else member.summary.min_cell
    if any(count is not None and count < max(1, cell) for count in header.class_counts.values()):
        return "it measured the model with fewer patients of a class than its smallest cell"
    for model in models:
        if model.model != arm:
            return "it has figures of another model"
        for name, each in model.estimates.items():
            largest = LARGEST_RATIO if name == "expected_over_observed" else None
            most = largest or (1.0 if name in ("auroc", "average_precision") else STEEPEST)
            least = -STEEPEST if name.startswith("calibration") else 0.0
            if study.task.predicts == "number" and name == "calibration_in_the_large":
                least, most = float("-inf"), float("inf")  # in the outcome's unit
            is_ordered = each.low <= each.value <= each.high
            if not (is_ordered and is_within(each.low, least, most) and each.high <= most):
                ends = f"{each.value:g} ({each.low:g} to {each.high:g})"
                return f"its {name.replace('_', ' ')} is {ends}"
    return None
