"""Checks the patients against a study's contract, and the study against the site's limits."""

from collections.abc import Iterator

import numpy as np

from erosion.client.dataset.load import Patients, load_patients
from erosion.client.dataset.split import split_patients
from erosion.client.finding import Finding, failed, ok, skipped
from erosion.client.site_file import Site
from erosion.client.training.limits import check_limits, check_study, local_steps
from erosion.common.errors import DataError, Refusal
from erosion.common.study.study import Study


def check_study_here(site: Site, study: Study) -> Iterator[Finding]:
    """The contract, the classes, and the limits."""
    try:
        patients = load_patients(site, study)
    except DataError as problem:
        text, _, details = str(problem).partition("\n")
        yield failed("contract", text, details.strip() or "see above")
        yield _limits_before_data(site, study)
        return
    yield ok("contract", f"{len(patients.labels)} patients meet it" + _notes(patients))
    yield ok("classes", _class_counts(study, patients))
    training = split_patients(study, site.name, patients.rows, patients.labels).training
    try:
        check_limits(site, study, len(training))
    except Refusal as problem:
        yield failed("limits", str(problem), "change the study or [limits]; it is your decision")
        return
    steps = local_steps(study.training, len(training))
    yield ok(
        "limits",
        f"kept: {len(training)} training patients, {steps} steps of {study.training.batch_size}"
        f" patients a round, {study.rounds} rounds",
    )


def _limits_before_data(site: Site, study: Study) -> Finding:
    try:
        check_study(site, study)
    except Refusal as problem:
        return failed("limits", str(problem), "change the study or [limits]; it is your decision")
    return skipped("limits", "the number of patients is unknown until the data are fixed")


def _notes(patients: Patients) -> str:
    return "".join(f"; {note}" for note in patients.notes)


def _class_counts(study: Study, patients: Patients) -> str:
    names = [label.name for label in study.task.classes]
    counts = np.bincount(patients.labels, minlength=len(names)).tolist()
    return ", ".join(f"{name} {count}" for name, count in zip(names, counts, strict=True))
