"""The user's final figures: asked for, and checked, as are those of a round."""

import math
from collections.abc import Callable, Mapping

import torch

from erosion_common.aggregation.vectors import is_finite
from erosion_common.errors import RunError
from erosion_common.learning.finished import MOST_LAYERS, layer_size, problem_with_layers_of
from erosion_common.protocol.messages import (
    EvaluateReply,
    EvaluateRequest,
    EvaluateResult,
    FinalMetrics,
    Metrics,
    Scaling,
    conclude,
    layers_of,
    significance_of,
)
from erosion_common.protocol.performance import problem_with_performance
from erosion_common.rounds.arm import algorithm_of
from erosion_common.rounds.bounds import most_update_bytes
from erosion_common.rounds.channel import Reply
from erosion_common.rounds.context import RunContext
from erosion_common.rounds.records import Absence, Rejection, RunState
from erosion_common.rounds.screening import sample_cap
from erosion_common.rounds.selection import folds_of
from erosion_common.study.sections import BEST_LOCAL
from erosion_common.study.study import Study
from erosion_common.support.text import printable
from erosion_common.tasks.metric import Metric
from erosion_common.tasks.task import Task

EVALUATE_SECONDS = 600.0  # for the final figures, in addition to what each arm needs
CHOOSING_SHARE = 0.5  # of a round's deadline, for a round of the arm that trains alone in all folds
RESAMPLE_SECONDS = 1e-5  # for a patient of a resample: several times what it takes
LONGEST_EVALUATION = 86_400.0  # however many patients a site reports
ROUNDING = 1e-6  # beyond a bound, for a bound of at most 1; else as a share of it
MOST_EVALUATIONS = 10  # of a user's site that disconnects whenever it is asked


def evaluate(ctx: RunContext, finals: Mapping[str, RunState]) -> EvaluateResult:
    """Asks the user's site for the final figures; waits for it if it is away. Raises RunError."""
    user = ctx.study.user
    request = evaluate_request(ctx.study, finals, scaling=ctx.scaling, run=ctx.run)
    problem, spent = "it was not connected", 0.0  # all attempts share one deadline
    for _ in range(MOST_EVALUATIONS):
        ctx.presence.wait_for([user], 1)
        described = {n: p for n, p in ctx.presence.described.items() if n in ctx.study.hospitals}
        patients = described[user]
        if ctx.every_user:  # others wait for it: it counts for no more than all of them
            patients = min(patients, sample_cap(described, user))
        left = evaluate_seconds(ctx.study, patients) - spent
        if left <= 0:
            break
        asked_at = ctx.channel.now()
        connection = ctx.presence.members[user].connection
        (reply,) = ctx.channel.ask({connection: request}, left)
        spent += ctx.channel.now() - asked_at
        match figures_in(reply, lambda found: problem_with_evaluation(found, ctx.study, finals)):
            case EvaluateResult() as result:
                return result
            case str() as problem:
                pass
        if not reply.left:
            break  # it answered that it cannot: asking again would not help
    raise RunError(
        f"The final figures are missing: the user's site {user!r} did not give them ({problem})",
        remedy=ctx.states_kept_in,
    )


def figures_in(
    reply: Reply, problem_with: Callable[[EvaluateResult], str | None]
) -> EvaluateResult | str:
    """Returns the figures that a site sent, or why there are none that can be used."""
    match reply.content:
        case EvaluateResult() as result:
            return problem_with(result) or result
        case Rejection(reason) | Absence(reason):
            return reason
        case other:
            return f"it answered with a {type(other).__name__}"


def evaluate_request(
    study: Study, finals: Mapping[str, RunState], *, scaling: Scaling | None, run: str = ""
) -> EvaluateRequest:
    """Returns the request for the final figures of every arm."""
    enclosed = {}
    for arm, state in finals.items():
        method, kept = algorithm_of(study, arm), state.algorithm_state
        enclosed[arm] = {**method.broadcast(kept), **method.broadcast_to_user(kept)}
    parameters = {arm: state.params for arm, state in finals.items()}
    # Personal parameters are the user's own model, or everybody's for a mean of their predictions.
    most = sum(most_update_bytes(len(p) * len(study.hospitals)) for p in parameters.values())
    if finishing := [arm for arm in finals if study.arms[arm].finish != "none"]:
        layers = MOST_LAYERS * (1 + layer_size(study.build_context.layout()))
        most += len(finishing) * most_update_bytes(layers)
    rounds = {arm: state.round for arm, state in finals.items()}
    return EvaluateRequest(
        study, parameters, scaling, run, enclosed, most_reply_bytes=most, rounds=rounds
    )


def evaluate_seconds(study: Study, num_training: int) -> float:
    """Returns how long the user's site may take, by its number of training patients.

    Each arm may train once more and is measured on every resample and cut into folds, as are the
    base rate and the local references. To choose among these, an arm that trains alone does so a
    few times more.
    """
    asked = study.evaluation
    patients = num_training / (1 - asked.test_share)
    resampling = asked.repeats * asked.bootstrap * patients * RESAMPLE_SECONDS
    trainings = len(study.arms) + (CHOOSING_SHARE * study.rounds if study.references else 0)
    of_arms = trainings * study.federation.round_deadline_seconds
    measured = len(study.arms) + len(study.references) + 2
    needed = EVALUATE_SECONDS + of_arms + measured * resampling
    return min(needed, LONGEST_EVALUATION)


def problem_with_evaluation(
    result: EvaluateResult, study: Study, finals: Mapping[str, RunState]
) -> str | None:
    """Returns why the user's final figures cannot be used; None where they can. A fold has none."""
    header, loss = result.header, study.task.verdict_metric
    if problem := problem_with_answer(header, study, study.user):
        return problem
    if study.fold is not None:
        return "it has figures of a fold" if header.arms or result.personal else None
    if missing := sorted(finals.keys() - header.arms.keys()):
        return f"its figures lack {', '.join(missing)}"
    finishing = {arm: layers_of(arm) for arm in finals if study.arms[arm].finish != "none"}
    given = header.arms.keys() | header.finishes.keys() | result.personal.keys()
    if strange := sorted(given - finals.keys() - set(finishing.values())):
        return f"it has figures of {', '.join(strange)[:100]}, which it was not asked about"
    if header.finishes.keys() != finishing.keys():
        return "its finishes are not of the arms that have one"
    compared = header.comparison
    is_mixed = compared is not None and compared.reference == BEST_LOCAL
    known = {*study.references, *([BEST_LOCAL] if is_mixed else [])}
    if unlike := sorted(known ^ header.references.keys()):
        return f"its figures of local references are others than the study's: {unlike[0][:100]}"
    if problem := _problem_with_comparison(header, study):
        return problem
    figures = [*header.arms.values(), *header.references.values()]
    figures += [header.base_rate] if header.base_rate else []
    if len({found.num_patients for found in figures}) > 1:
        return "it tested its arms on different patients"
    if any(found.get(loss) is None for found in figures):
        return f"its figures lack the {loss} of an arm, or of the base rate"
    for found in figures[len(header.arms) :]:
        if problem := problem_with_figures(found, study.task):
            return problem
    features = {feature.name for feature in getattr(study.task, "features", ())}
    if header.best_column is not None and header.best_column.name not in features:
        named = printable(header.best_column.name, at_most=50)
        return f"it measured the column {named!r}, which the study has not"
    for arm, name in finishing.items():
        layers = result.personal.get(name, torch.empty(0))
        if problem := problem_with_layers_of(layers, study.build_context.layout()):
            return f"its last layers of {arm} {problem}"
    for arm, personal in result.personal.items():
        if arm not in finals:
            continue
        dim = len(finals[arm].params)
        if personal.dtype != torch.float32 or personal.dim() not in (1, 2):
            return f"its personal parameters of {arm} are no vectors of torch.float32"
        if not personal.numel() or personal.shape[-1] != dim:
            return f"its personal parameters of {arm} have shape {tuple(personal.shape)}"
        if not is_finite(personal.flatten()):
            return f"its personal parameters of {arm} are not finite"
    return None


def problem_with_answer(header: EvaluateReply, study: Study, hospital: str) -> str | None:
    """Returns why these cannot be a hospital's figures of the study's arms, or None."""
    if header.hospital != hospital:
        return f"it answered as {printable(header.hospital, at_most=50)!r}"
    if strange := sorted(header.class_counts.keys() - study.task.group_names):
        named = printable(strange[0], at_most=50)
        return f"it counted patients of {named!r}, which the study has not"
    problems = (problem_with_figures(found, study.task) for found in header.arms.values())
    return next(filter(None, problems), problem_with_performance(header.performance, study))


def problem_with_metrics(found: Metrics, task: Task) -> str | None:
    """Returns why no model can have these figures, or None; undefined figures pass."""
    for metric in task.metrics:
        value = found.get(metric.name)
        if value is not None and not is_within(value, metric.least, metric.most):
            return f"its {metric.label} is {value:g}, expected {_bounds(metric)}"
    return None


def problem_with_figures(found: FinalMetrics, task: Task) -> str | None:
    """Returns why no model can have these figures and intervals, or None."""
    if problem := problem_with_metrics(found, task):
        return problem
    if strange := [name for name in found.intervals if found.get(name) is None]:
        name = printable(strange[0], at_most=50)
        return f"it has an interval of {name!r}, and no such figure"
    for metric in task.metrics:
        if (ends := found.intervals.get(metric.name)) is None:
            continue
        what = f"the interval of its {metric.label} is {ends.low:g} to {ends.high:g}"
        if ends.low > ends.high:
            return f"{what}, the wrong way round"
        if not all(is_within(end, metric.least, metric.most) for end in (ends.low, ends.high)):
            return f"{what}, expected {_bounds(metric)}"
    return None


def is_within(value: float, least: float, most: float) -> bool:
    """Returns whether a value lies between two bounds, but for rounding; NaN lies nowhere."""
    below, above = (ROUNDING * max(1.0, abs(bound)) for bound in (least, most))
    return least - below <= value <= most + above


def _bounds(metric: Metric) -> str:
    ends = [(metric.least, "at least"), (metric.most, "at most")]
    return " and ".join(f"{words} {end:g}" for end, words in ends if math.isfinite(end))


def _problem_with_comparison(header: EvaluateReply, study: Study) -> str | None:
    """Check one user's comparison: with all hospitals as users, the others' are shown with it."""
    found = header.comparison
    if (found is None) != (study.comparison is None):
        return "it did not compare what the study declares"
    if found is None or study.comparison is None:
        return None
    arm, candidates = study.comparison
    parts = max(1, len(folds_of(study)))
    best = [name for name in candidates if found.chosen.get(name)] or [candidates[0]]
    expected = BEST_LOCAL if len(best) > 1 else best[0]
    if (found.arm, found.reference) != (arm, expected):
        return "it did not compare what the study declares"
    choosing = {*candidates} if len(candidates) > 1 else set()
    if found.chosen.keys() != choosing or sum(found.chosen.values()) != (parts if choosing else 0):
        return "it did not choose its reference once in each training part"
    cuts = study.evaluation.repeats if study.evaluation.repeats > 1 else 0
    if len(found.p_by_cut) != cuts:
        return "its p-values are not those of the study's cuts into folds"
    if (found.level, found.strict) != (significance_of(study), study.evaluation.strict):
        return "it compared by another rule than the study's"
    if found.num_patients != header.arms[found.arm].num_patients:
        return "it compared other patients than it tested"
    if found.smallest_class > found.num_patients:
        return "a group of its patients is larger than all of them"
    most = study.task.largest_difference
    if not is_within(found.mean_difference, -most, most):
        return f"its arms differ by {found.mean_difference:g}, expected at most {most:g}"
    shown = conclude(found.mean_difference, found.p_value, found.smallest_class, found.level)
    if found.conclusion != shown:
        return f"it says {found.conclusion!r}, where its figures show {shown!r}"
    return None
