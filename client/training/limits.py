"""Checks a study against a hospital's own limits before anything is computed for it."""

from fnmatch import fnmatchcase

from erosion.client.site_file import Limits, Site
from erosion.common.errors import Refusal
from erosion.common.learning.installed import Installed
from erosion.common.learning.training import Training
from erosion.common.privacy.accountant import ROUNDING, epsilon_of
from erosion.common.study.study import Study


def local_steps(training: Training, num_samples: int, smallest: int = 1) -> int:
    """Mini-batches of one round at a hospital with `num_samples` rows or images to train on.

    `smallest`: how many of them a mini-batch must have, `limits.min_batch_size`.
    """
    if training.epochs is not None:
        return training.epochs * len(training.sizes_of_a_pass(num_samples, smallest))
    return training.steps or 0


def part_asked(site: Site, study: Study) -> Study:
    """Of a study with every hospital as its user, the part that asks most of this one."""
    if not study.has_every_user:
        return study
    others = [name for name in study.hospitals if name != site.name]
    is_user = site.name in study.hospitals and (site.limits.as_user or not others)
    return study.for_user(site.name if is_user else others[0])


def check_study(site: Site, study: Study) -> None:
    """Refuse what the study file alone shows, so that no data are read for it."""
    _refuse_for(site, study, _study_reasons(site, study))


def check_limits(site: Site, study: Study, num_samples: int, num_patients: int) -> None:
    """Refuse a study that the site's limits do not allow with this many samples and patients.

    Raises Refusal with every reason and its limit. How many patients there are is not told.
    """
    limits = site.limits
    reasons = _study_reasons(site, study)
    if num_patients < limits.min_patients:
        reasons.append(
            f"it has fewer training patients than limits.min_patients = {limits.min_patients}"
        )
    elif num_patients < limits.min_cell:
        reasons.append(f"it has fewer training patients than limits.min_cell = {limits.min_cell}")
    steps = local_steps(study.training, num_samples, limits.min_batch_size)
    if study.privacy is not None:
        steps = 1
    # What a peer sends of its one step has noise, of which its patients' promise is made.
    is_noised = study.privacy is not None and site.name != study.user
    if steps < limits.min_local_steps and not is_noised:
        reasons.append(
            "a round has fewer local steps there than limits.min_local_steps ="
            f" {limits.min_local_steps}"
        )
    is_summed = study.federation.sealed and site.name != study.user
    if is_summed and study.privacy is None:
        # With several rows a patient, each row of a batch may be of another one.
        if 2 * study.training.batch_size > num_patients:
            reasons.append(
                "its rounds are sealed, and a batch there may be of more than half of its training"
                " patients: two sums with and without this hospital would give its update away."
                " Smaller batches or [privacy] prevent that"
            )
        seen = min(1.0, steps * study.training.batch_size / num_patients)
        if seen > limits.largest_round:
            reasons.append(
                "its rounds are sealed and may go over a larger share of its training patients than"
                f" limits.largest_round = {limits.largest_round:g}. Fewer steps or smaller batches"
                " prevent that"
            )
    _refuse_for(site, study, reasons)


def _study_reasons(site: Site, study: Study) -> list[str]:
    limits, training = site.limits, study.training
    reasons = []
    if site.name not in study.hospitals:
        reasons.append(f"it is not among the study's hospitals ({', '.join(study.hospitals)})")
    if site.name == study.user and not limits.as_user:
        reasons.append(
            "it would be the user, whose test figures and personal model go to the coordinator;"
            " limits.as_user = false"
        )
    if not any(fnmatchcase(study.name, pattern) for pattern in limits.studies):
        reasons.append(
            f"study {study.name!r}; limits.studies accepts only {', '.join(limits.studies)}"
        )
    if not any(fnmatchcase(study.model.name, pattern) for pattern in limits.models):
        reasons.append(
            f"model {study.model.name!r}; limits.models accepts only {', '.join(limits.models)}"
        )
    if isinstance(study.model, Installed) and (problem := problem_with_code(study.model, limits)):
        reasons.append(problem)
    if limits.sealed_only and not study.federation.sealed:
        reasons.append("its rounds are not sealed (federation.sealed); limits.sealed_only = true")
    if limits.epsilon is not None and (problem := _problem_with_privacy(site, study)):
        reasons.append(problem)
    if limits.max_rounds is not None and study.rounds > limits.max_rounds:
        reasons.append(f"{study.rounds} rounds; limits.max_rounds = {limits.max_rounds}")
    if training.batch_size < limits.min_batch_size:
        reasons.append(
            f"batches of {training.batch_size}; limits.min_batch_size = {limits.min_batch_size}"
        )
    if training.order == "sequential" and not site.compute.public_order:
        reasons.append(
            "who is in which mini-batch would be known from the study (training.order ="
            ' "sequential"); compute.public_order = false'
        )
    return reasons


def _problem_with_privacy(site: Site, study: Study) -> str | None:
    """What a site that has a limit for its patients' privacy does not take part in."""
    limit = f"limits.epsilon = {site.limits.epsilon:g}"
    if study.privacy is None:
        return f"it promises no differential privacy (no [privacy]); {limit}"
    if site.name == study.user:
        return f"it would be the user, whose updates have no noise; {limit}"
    cost = epsilon_of(study.privacy_cost, site.limits.delta)
    if site.limits.epsilon is not None and cost > site.limits.epsilon * ROUNDING:
        return f"a run costs each patient epsilon {cost:.3g}; {limit}"
    return None


def problem_with_code(model: Installed, limits: Limits) -> str | None:
    """Nothing of a package is imported before this says None."""
    allowed = limits.installed_models.get(model.entry_point)
    if allowed == model.sha256:
        return None
    what = f"the installed model {model.entry_point!r} with the SHA-256 {model.sha256}"
    if allowed is not None:
        return f"{what}; limits.installed_models allows it with {allowed} only"
    known = ", ".join(limits.installed_models) or "none"
    return f"{what}; limits.installed_models allows {known}"


def _refuse_for(site: Site, study: Study, reasons: list[str]) -> None:
    if reasons:
        raise Refusal(
            f"{site.name} declines study {study.name!r}: {'; '.join(reasons)}."
            " Change the study, or ask the hospital to change its site file."
        )
