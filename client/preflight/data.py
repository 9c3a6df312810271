"""Checks the patients against a study's contract, and the study against the site's limits."""

import json
from collections.abc import Iterator

import numpy as np

from erosion.client.dataset.load import Patients, load_patients
from erosion.client.dataset.single_column import columns_of, outcome_of, suspicion
from erosion.client.dataset.split import Split, for_more_tested, split_patients
from erosion.client.finding import Finding, failed, ok, skipped, warning
from erosion.client.privacy.privacy_words import has_begun, problem_with_cost, promised
from erosion.client.scaffold.patient_key import (
    numbered_features,
    rows_of_patients,
    undeclared_key,
)
from erosion.client.scaffold.telling import BY_NAME, is_known_afterwards
from erosion.client.site_file import Site
from erosion.client.training.folds import check_parts
from erosion.client.training.limits import check_limits, check_study, local_steps
from erosion.common.errors import DataError, Refusal
from erosion.common.learning.local_work import PatientCounts
from erosion.common.rounds.selection import folds_ahead
from erosion.common.study.sections import fewest_held_out, folds_key
from erosion.common.study.study import Study
from erosion.common.tasks.features import CategoryFeature
from erosion.common.tasks.inputs import ImageTask, TabularTask


def check_study_here(site: Site, study: Study) -> Iterator[Finding]:
    """What the task needs here, the contract, the classes, and the limits."""
    if site.name == study.user and (lacking := study.task.why_not_here()):
        text, _, remedy = lacking.partition(". ")
        yield failed("task", text, remedy)
    try:
        patients = load_patients(site, study)
        split = _split(study, site, patients)
    except DataError as problem:
        text, _, details = str(problem).partition("\n")
        yield failed("contract", text, details.strip() or "see above")
        yield _limits_before_data(site, study)
        return
    yield from _contract(site, study, patients)
    yield ok("target", study.task.described(patients.outcomes(study.task)))
    yield from _leaks(site, study, patients)
    yield from _cells(site, study, patients, split)
    counts = _counts_in(study, site, patients)
    try:
        check_limits(site, study, counts)
        check_parts(site, study, lambda part: _counts_in(part, site, patients))
    except (Refusal, DataError) as problem:
        yield failed("limits", str(problem), "change the study or [limits]; it is your decision")
        return
    samples = _samples(study, patients)
    steps = local_steps(study.training, len(split.training), site.limits.min_batch_size)
    work = f"{steps} steps of {study.training.batch_size} {samples} a round"
    if study.privacy is not None:
        work = "one step of all patients a round"
    yield ok(
        "limits", f"kept: {counts.num_patients} training patients, {work}, {study.rounds} rounds"
    )
    yield from _privacy(site, study)


def _contract(site: Site, study: Study, patients: Patients) -> Iterator[Finding]:
    """What is to be known of patients who meet it."""
    yield ok("contract", f"{_count(study, patients)} meet it")
    for note in patients.notes:
        yield warning("contract", note, "")
    if (key := undeclared_key(site.data, study)) is not None:
        yield warning(
            "contract",
            f"{rows_of_patients(key)}, and each row is counted as a patient",
            f"write patient = {json.dumps(key.name, ensure_ascii=False)} under [data]",
        )
    for name in numbered_features(site.data, study, patients.rows):
        yield warning(
            "contract",
            f"column {name} seems to number patients or rows, and the study takes it for a feature:"
            " a model learns nothing from it that holds for another patient, and a hospital's"
            " updates may tell whose numbers it has",
            "ask the coordinator to take it out of the study's features, if it does",
        )


def _leaks(site: Site, study: Study, patients: Patients) -> Iterator[Finding]:
    """Columns that may be known only after the outcome, for they tell it or their name says so."""
    task = study.task
    if not isinstance(task, TabularTask):
        return
    outcome = outcome_of(task, patients.outcomes(task))
    for feature, values in columns_of(task, patients.rows, patients.groups):
        why = suspicion(values, outcome, is_category=isinstance(feature, CategoryFeature))
        names = {feature.name, site.data.local_name(feature.name)}
        if why or any(map(is_known_afterwards, names)):
            yield warning(
                "leak",
                f"column {feature.name}: {why or BY_NAME}",
                "ask the coordinator to take it out of the study's features, if it is known only"
                " after the outcome",
            )


def _cells(site: Site, study: Study, patients: Patients, split: Split) -> Iterator[Finding]:
    """Parts of the patients of which figures leave, or can be reckoned, that are too small."""
    yield ok("cells", f"no figure about fewer than {site.limits.min_cell} patients leaves")
    if site.name == study.user and len(split.test):
        tested = len(np.unique(patients.groups[split.test]))
        if tested < site.limits.min_cell:
            yield failed(
                "cells",
                f"the test part has {tested} patients; limits.min_cell = {site.limits.min_cell}",
                f"{for_more_tested(study)}, or let the study have another user",
            )
    folds = folds_ahead(study) if site.name == study.user else ()
    if folds:
        in_each = fewest_held_out(folds, len(np.unique(patients.groups[split.training])))
        if in_each < site.limits.min_cell:
            yield failed(
                "cells",
                f"a fold has {in_each} patients; limits.min_cell = {site.limits.min_cell}",
                f"lower {folds_key(folds)}, or let the study have another user",
            )


def _counts_in(study: Study, site: Site, patients: Patients) -> PatientCounts:
    """Those whom the study, or one of its folds or trials, trains on here."""
    training = _split(study, site, patients).training
    return PatientCounts.of(study.task, patients.targets[training], patients.groups[training])


def _split(study: Study, site: Site, patients: Patients) -> Split:
    return split_patients(
        study, site.name, patients.rows, patients.targets, patients.groups, patients.is_test
    )


def _privacy(site: Site, study: Study) -> Iterator[Finding]:
    """What a run would cost, and whether there is as much left."""
    if study.privacy is None:
        return
    problem = problem_with_cost(site, study)
    if problem and has_begun(site, study):
        yield warning(
            "privacy",
            f"a run that has begun can go on, not a new one: {problem}",
            "for a new one ask for a smaller privacy.epsilon; it is your decision",
        )
    elif problem:
        yield failed("privacy", problem, "ask for a smaller privacy.epsilon; it is your decision")
        return
    for line in promised(site, study):
        yield ok("privacy", line)


def _limits_before_data(site: Site, study: Study) -> Finding:
    try:
        check_study(site, study)
    except Refusal as problem:
        return failed("limits", str(problem), "change the study or [limits]; it is your decision")
    return skipped("limits", "the number of patients is unknown until the data are fixed")


def _count(study: Study, patients: Patients) -> str:
    """ "328 patients", or "400 images of 328 patients"."""
    counted = f"{len(patients.targets)} {_samples(study, patients)}"
    if patients.num_patients == len(patients.targets):
        return counted
    return f"{counted} of {patients.num_patients} patients"


def _samples(study: Study, patients: Patients) -> str:
    """What is trained on: rows, which are patients where each has one, or images."""
    if isinstance(study.task, ImageTask):
        return "images"
    return "patients" if patients.num_patients == len(patients.targets) else "rows"
