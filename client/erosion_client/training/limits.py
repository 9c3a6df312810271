"""What a study asks of a hospital's limits and budgets, and why it is declined."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch

from erosion_client.records.answers import Used
from erosion_client.site_file import Budget, Limits, Site
from erosion_common.errors import Refusal
from erosion_common.learning.installed import InstalledModel
from erosion_common.learning.local_work import PatientCounts, WorkSize
from erosion_common.learning.models import num_built
from erosion_common.learning.training import Training
from erosion_common.rounds.selection import candidates, folds_ahead, folds_of, trial
from erosion_common.settings.packages import Kind, allow_only, problem_with_part
from erosion_common.study.privacy import ROUNDING, epsilon_of
from erosion_common.study.sections import Fold, folds_key
from erosion_common.study.study import Study


@dataclass(frozen=True, slots=True)
class Needs:
    """What a hospital answers at most in one run of a study, in all its parts."""

    runs: int  # as sites count them: one per user
    rounds: int  # of the arms that ask it, including trials and folds
    evaluations: int  # number of final figures, its own as the user and those of others' models


def needs_of(site: Site, study: Study) -> Needs:
    """Return what one run of `study` needs here, with all parts of a run for every user."""
    users = set(study.hospitals) if study.has_every_user else {study.user}
    own = int(site.name in users and site.limits.as_user)
    others = len(users - {site.name})
    measures = study.validation is not None and site.limits.validation
    as_user, as_peer = (_rounds(study, site.name, is_user=is_user) for is_user in (True, False))
    return Needs(
        runs=own + others,
        rounds=own * as_user + others * as_peer,
        evaluations=own + others * measures,
    )


def lacking(budget: Budget, used: Used, needs: Needs) -> Iterator[str]:
    """Yield the budgets that have less left for one coordinator than one more run needs."""
    given, needed, most = used.rounds, needs.rounds, budget.rounds
    if (left := max(0, most - given)) < needed:
        yield (
            f"{given} rounds were answered, up to {needed} rounds are needed, and {left} are left"
            f" (budget.rounds = {most})"
        )
    given, needed, most = used.evaluations, needs.evaluations, budget.evaluations
    if (left := max(0, most - given)) < needed:
        yield (
            f"final figures were given {given} times, and are left {left} times"
            f" (budget.evaluations = {most})"
        )


def longest_arm(study: Study) -> int:
    """Return the most rounds of an arm, in the study or its trials."""
    is_tried = study.selection is not None or study.selection_fold is not None
    return study.rounds + is_tried


def rounds_asked(study: Study) -> int:
    """Return the rounds of an arm of this study alone; a trial also measures its last round."""
    return study.rounds + (study.selection_fold is not None)


def num_trials(study: Study, arm: str) -> int:
    """Return the number of trials that choose the arm's settings."""
    if study.selection is None:
        return 0
    return len(candidates(study, arm)) * len(study.selection.trial_folds())


def _rounds(study: Study, hospital: str, *, is_user: bool) -> int:
    """Return the rounds of one user's run; predicting a fold counts as a round of the user."""
    arms = study.arms_asking(hospital, is_user=is_user)
    whole = study.rounds * len(arms)
    tried = sum(num_trials(study, arm) for arm in arms) * longest_arm(study)
    return whole + tried + len(folds_of(study)) * (whole + is_user)


def local_steps(training: Training, num_samples: int, smallest: int = 1) -> int:
    """Return the mini-batches of one round at a hospital with `num_samples` rows or images."""
    if training.epochs is not None:
        return training.epochs * len(training.sizes_of_a_pass(num_samples, smallest))
    return training.steps or 0


def part_asked(site: Site, study: Study) -> Study:
    """Return, of a study with every hospital as its user, the part that asks most of this one."""
    if not study.has_every_user:
        return study
    others = [name for name in study.hospitals if name != site.name]
    is_user = site.name in study.hospitals and (site.limits.as_user or not others)
    return study.for_user(site.name if is_user else others[0])


def check_study(site: Site, study: Study) -> None:
    """Refuse what the study file alone shows, so that no data are read for it."""
    _refuse_for(site, study, _study_reasons(site, study))


def check_limits(site: Site, study: Study, counts: PatientCounts) -> None:
    """Refuse a study that the site's limits do not allow with these training patients."""
    reasons = [*_study_reasons(site, study)]
    for key in ("min_patients", "min_cell"):
        if counts.num_patients < (fewest := getattr(site.limits, key)):
            reasons.append(f"it has fewer training patients than limits.{key} = {fewest}")
            break
    # A peer's one step has noise, which its patients' promise is about.
    if study.privacy is None or site.name == study.user:
        reasons += _training_reasons(site, study, counts)
    if study.federation.sealed and study.privacy is None and site.name != study.user:
        reasons += _sealed_reasons(site, study, counts)
    _refuse_for(site, study, reasons)


def _local_trainings(
    site: Site, study: Study, counts: PatientCounts
) -> Sequence[tuple[str, WorkSize]]:
    """Return what this site trains in a round of the arms that ask it, with the arm's name."""
    whole = WorkSize(
        agent=site.name,
        is_user=site.name == study.user,
        training=study.training,
        counts=counts,
        num_patients=counts.num_patients,
        smallest_cell=site.limits.min_cell,
        smallest_batch=site.limits.min_batch_size,
    )
    asking = study.arms_asking(site.name, is_user=whole.is_user)
    return [
        (name, size)
        for name, arm in study.arms.items()
        if name in asking
        for size in arm.local_trainings(whole)
    ]


def _training_reasons(site: Site, study: Study, counts: PatientCounts) -> Iterator[str]:
    """Yield local trainings with too few steps or samples, for any part of the patients."""
    limits, trainings = site.limits, _local_trainings(site, study, counts)
    if study.privacy is not None:
        if limits.min_local_steps > 1:
            yield (
                "a round has fewer local steps there than limits.min_local_steps ="
                f" {limits.min_local_steps}: with [privacy] it is one step, so that only a limit of"
                " 1 allows it"
            )
    elif short := [(n, size) for n, size in trainings if _steps(size) < limits.min_local_steps]:
        yield (
            "a round has fewer local steps there than limits.min_local_steps ="
            f" {limits.min_local_steps}: {_in_words(short, _for_more_steps)}"
        )
    if trainings and counts.smallest_part < limits.min_class:
        remedy = "fewer classes, intervals or interactions"
        if site.name != study.user:  # the user's updates have no noise
            remedy += ", or [privacy]"
        yield (
            "a class, an interval of time in which a follow-up ends, or a category in an"
            " interaction has training patients there, but fewer than limits.min_class ="
            f" {limits.min_class} (remedy: {remedy})"
        )
    small = [(n, size) for n, size in trainings if size.num_samples < limits.min_batch_size]
    if small and counts.num_samples < limits.min_batch_size:
        yield (
            "it has fewer rows or images to train on than limits.min_batch_size ="
            f" {limits.min_batch_size}"
        )
    elif small:
        yield (
            "a mini-batch has fewer rows or images there than limits.min_batch_size ="
            f" {limits.min_batch_size}: {_in_words(small, _for_more_rows)}"
        )


def _in_words(trainings: Iterable[tuple[str, WorkSize]], remedy: Callable[[WorkSize], str]) -> str:
    arms: dict[str, list[str]] = {}
    for name, size in trainings:
        training = size.training
        length = f"epochs = {training.epochs}" if training.epochs else f"steps = {training.steps}"
        part = " on a part of its patients" if size.num_patients < size.counts.num_patients else ""
        what = f"{length} in batches of {training.batch_size}{part} (remedy: {remedy(size)})"
        arms.setdefault(what, []).append(name)
    return ", ".join(f"{', '.join(names)} with {what}" for what, names in arms.items())


def _for_more_steps(size: WorkSize) -> str:
    if size.remedy:
        return size.remedy
    if size.training.steps is not None:
        return "more steps"
    has_larger = size.training.batch_size > size.smallest_batch
    return "more epochs, or smaller batches" if has_larger else "more epochs"


def _for_more_rows(size: WorkSize) -> str:
    is_half = size.side_by_side > 1
    return "leaving it out" if is_half else "a smaller validation_share, or leaving it out"


def _steps(size: WorkSize) -> int:
    return local_steps(size.training, size.num_samples, size.smallest_batch)


def _sealed_reasons(site: Site, study: Study, counts: PatientCounts) -> Iterator[str]:
    limits, sizes = site.limits, [size for _, size in _local_trainings(site, study, counts)]
    in_batches = [size.side_by_side * size.training.batch_size for size in sizes]
    if any(2 * num > counts.num_patients for num in in_batches):
        yield (
            "its rounds are sealed, and a batch there may be of more than half of its training"
            " patients, or of the part that it is drawn from: two sums with and without this"
            " hospital would give its update away. Smaller batches or [privacy] prevent that"
        )
    seen = [_steps(size) * num for size, num in zip(sizes, in_batches, strict=True)]
    if any(min(1.0, num / counts.num_patients) > limits.largest_round for num in seen):
        fewer = "Fewer steps or smaller batches"
        if study.training.epochs:  # a pass goes over all of them
            fewer = "A few steps in place of epochs"
        yield (
            "its rounds are sealed and may go over a larger share of its training patients than"
            f" limits.largest_round = {limits.largest_round:g}. {fewer} prevent that"
        )


def _study_reasons(site: Site, study: Study) -> Iterator[str]:
    limits, training = site.limits, study.training
    if site.name not in study.everyone:
        yield f"it is not among the study's hospitals ({', '.join(study.everyone)})"
    if site.name in study.only_measuring and not limits.validation:
        yield "it would only measure the model; limits.validation = false"
    if site.name == study.user and not limits.as_user:
        yield (
            "it would be the user: its test figures and personal model go to the coordinator;"
            " limits.as_user = false"
        )
    for what, name, key, allowed in (
        ("study", study.name, "limits.studies", limits.studies),
        ("model", study.model.name, "limits.models", limits.models),
    ):
        if not any(fnmatchcase(name, pattern) for pattern in allowed):
            yield f"{what} {name!r}; {key} accepts only {', '.join(allowed)}"
    yield from _problems_with_packages(study, limits)
    if study.model.has_free_shapes:  # only an installed method's own code knows
        shape = tuple(study.task.input_shape)
        built, most = num_built(study.model, shape, study.task.num_outputs), limits.max_parameters
        if built > most:
            yield f"a model of {built:,} parameters; limits.max_parameters = {most}"
    if limits.sealed_only and not study.federation.sealed:
        yield "its rounds are not sealed (federation.sealed); limits.sealed_only = true"
    if limits.epsilon is not None and (problem := _problem_with_privacy(site, study)):
        yield problem
    if limits.max_rounds is not None and (longest := longest_arm(study)) > limits.max_rounds:
        in_trials = " in its trials" if longest > study.rounds else ""
        yield f"{longest} rounds{in_trials}; limits.max_rounds = {limits.max_rounds}"
    if training.batch_size < limits.min_batch_size:
        yield f"batches of {training.batch_size}; limits.min_batch_size = {limits.min_batch_size}"
    if training.order == "sequential" and not site.compute.public_order:
        yield (
            "who is in which mini-batch would be known from the study (training.order ="
            ' "sequential"); compute.public_order = false'
        )


def _problem_with_privacy(site: Site, study: Study) -> str | None:
    limit = f"limits.epsilon = {site.limits.epsilon:g}"
    if study.privacy is None:
        return f"it promises no differential privacy (no [privacy]); {limit}"
    if site.name == study.user:
        return f"it would be the user: its updates have no noise; {limit}"
    cost = epsilon_of(study.privacy_cost, site.limits.delta)
    if site.limits.epsilon is not None and cost > site.limits.epsilon * ROUNDING:
        delta = site.limits.delta
        return f"a run costs each patient epsilon {cost:.3g} at limits.delta = {delta:g}; {limit}"
    return None


def problem_with_code(model: InstalledModel, limits: Limits) -> str | None:
    """Return why a model's code may not run. Nothing of its package is imported before."""
    return problem_with_part("model", model.entry_point, model.sha256, limits.installed_models)


def allow_only_these(limits: Limits) -> None:
    """Import no package's method or task for a study unless these limits name it."""
    allow_only({"method": limits.installed_methods, "task": limits.installed_tasks})


def _problems_with_packages(study: Study, limits: Limits) -> Iterator[str]:
    """Yield packages' models, methods and tasks that the limits do not allow."""
    if isinstance(study.model, InstalledModel):
        yield from filter(None, [problem_with_code(study.model, limits)])
    parts: list[tuple[Kind, str, Any, Mapping[str, str]]] = [
        *(("method", a.algorithm, a, limits.installed_methods) for a in study.arms.values()),
        ("task", study.task.outcome, study.task, limits.installed_tasks),
    ]
    for kind, name, table, allowed in parts:
        sha256 = getattr(table, "sha256", None)
        if sha256 and (problem := problem_with_part(kind, name, sha256, allowed)):
            yield problem


def _refuse_for(site: Site, study: Study, reasons: Iterable[str]) -> None:
    if said := "; ".join(reasons):
        raise Refusal(
            f"{site.name} declines study {study.name!r}: {said}",
            remedy="Change the study, or ask the hospital to change its site file.",
        )


def check_parts(site: Site, study: Study, counts_in: Callable[[Study], PatientCounts]) -> None:
    """Refuse a whole study if a fold or trial would be refused once others have run.

    `counts_in`: the training patients here of a fold's study, computed once: a large hospital's
    split takes seconds. Raises Refusal and DataError.
    """
    if not (folds := folds_ahead(study)):
        return
    # The first fold leaves the fewest patients; of a class, any fold may.
    of_classes = site.limits.min_class > 1 and site.name == study.user
    for fold in folds if of_classes else folds[:1]:
        counts = counts_in(study.model_copy(update={"fold": fold}))
        for part in _parts(study, fold):
            try:
                check_limits(site, part, counts)
            except Refusal as problem:
                where = f"Where a fold is held out ({folds_key(folds)} = {fold.of})"
                raise Refusal(str(problem), where=where) from None


def _parts(study: Study, fold: Fold) -> Iterator[Study]:
    """Yield the study without that fold: with each candidate if any, on the same patients."""
    if study.selection is None:
        yield study.model_copy(update={"fold": fold})
        return
    for arm in study.arms:
        for settings in candidates(study, arm):
            yield trial(study, arm, settings, fold)


def problem_with_device(device: str) -> str:
    """Return why training cannot use this device of the machine; "" where it can.

    On a GPU it is then made repeatable, to the bit: https://docs.pytorch.org/docs/stable/notes/randomness.html.
    """
    if device != "cpu":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before the first product
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as problem:
        return str(problem).splitlines()[0]
    if device != "cpu":
        torch.use_deterministic_algorithms(mode=True, warn_only=True)
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.allow_tf32 = False  # 10 bits of each factor, where a processor has 23
    return ""
