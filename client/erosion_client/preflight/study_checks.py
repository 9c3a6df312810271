"""Checks a study here: its contract on the patients, its model, the limits and sealed rounds."""

import json
import os
from collections.abc import Iterator

from torch import nn

from erosion_client.dataset.load import Patients, load_patients
from erosion_client.dataset.single_column import columns_of, outcome_of, suspicion
from erosion_client.dataset.split import CountedPatients, Split, split_patients
from erosion_client.disclosure.control import DisclosureControl
from erosion_client.finding import Finding, failed, failed_by, ok, skipped, warning
from erosion_client.records.account import dataset_of
from erosion_client.records.records import Records
from erosion_client.scaffold.column_roles import (
    BY_NAME,
    is_known_afterwards,
    numbered_features,
    rows_of_patients,
    undeclared_key,
)
from erosion_client.sealed.sealed_steps import sum_rules
from erosion_client.site_file import Site
from erosion_client.training.limits import (
    check_limits,
    check_parts,
    check_study,
    local_steps,
    problem_with_code,
)
from erosion_client.training.privacy import problem_with_cost, promised
from erosion_common.errors import DataError, ModelError, Refusal, SiteError
from erosion_common.learning.installed import InstalledModel
from erosion_common.learning.local_work import PatientCounts
from erosion_common.learning.models import build_model
from erosion_common.learning.pretrained import some
from erosion_common.learning.trainable import named_trained_parameters, tied_names
from erosion_common.sealed.pinned_keys import read_pinned_keys
from erosion_common.settings.packages import installed_part
from erosion_common.study.study import Study
from erosion_common.support.keys import fingerprint
from erosion_common.tasks.features import CategoryFeature
from erosion_common.tasks.inputs import ImageTask, TabularTask, few_for_inputs

CAN_CONTINUE = "a run that has begun can continue, not a new one"
CHANGE = "change the study or [limits]; it is your decision"


def check_study_here(site: Site, study: Study, records: Records | None = None) -> Iterator[Finding]:
    """Check the task's needs, the contract, the classes, and the limits."""
    if site.name == study.user and (lacking := study.task.why_not_here()):
        yield failed("task", lacking, "")
    try:
        patients = load_patients(site, study)
        columns = patients.rows, patients.targets, patients.groups, patients.is_test
        split = split_patients(study, site.name, *columns)
    except DataError as problem:
        text, _, details = str(problem).partition("\n")
        yield failed("contract", text, details.strip() or "see above")
        try:
            check_study(site, study)
        except Refusal as refusal:
            yield failed("limits", str(refusal), CHANGE)
        else:
            yield skipped("limits", "the number of patients is unknown until the data are fixed")
        return
    yield from _contract(site, study, patients)
    outcomes = patients.outcomes(study.task)
    yield ok("target", study.task.described(outcomes))
    if site.name == study.user:
        few = few_for_inputs(study.task, study.task.smallest_group(outcomes))
        if few:
            yield warning("target", few, "")
    yield from _leaks(site, study, patients)
    yield from _cells(site, study, patients, split, records)

    def counts_in(part: Study) -> PatientCounts:
        training = split_patients(part, site.name, *columns).training
        rows, targets = patients.rows[training], patients.targets[training]
        return PatientCounts.of(part.task, rows, targets, patients.groups[training])

    counts = counts_in(study)
    try:
        check_limits(site, study, counts)
        check_parts(site, study, counts_in)
    except (Refusal, DataError) as problem:
        yield failed("limits", str(problem), CHANGE)
        return
    samples = _samples(study, patients)
    steps = local_steps(study.training, len(split.training), site.limits.min_batch_size)
    work = f"{steps} steps of {study.training.batch_size} {samples} a round"
    if study.privacy is not None:
        work = "one step of all patients a round"
    done = f"{counts.num_patients} training patients, {work}, {study.rounds} rounds"
    if site.name in study.only_measuring:
        done = f"it only measures, on {counts.num_patients} patients"
    yield ok("limits", f"kept: {done}")
    yield from _privacy(site, study, records)


def _contract(site: Site, study: Study, patients: Patients) -> Iterator[Finding]:
    counted = f"{len(patients.targets)} {_samples(study, patients)}"
    if patients.num_patients != len(patients.targets):
        counted += f" of {patients.num_patients} patients"
    yield ok("contract", f"{counted} meet it")
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
            " updates may disclose its patients' numbers",
            "ask the coordinator to take it out of the study's features, if it does",
        )


def _leaks(site: Site, study: Study, patients: Patients) -> Iterator[Finding]:
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


def _cells(
    site: Site, study: Study, patients: Patients, split: Split, records: Records | None
) -> Iterator[Finding]:
    yield ok("cells", f"no figure about fewer than {site.limits.min_cell} patients leaves")
    if records is not None:
        try:
            cells = DisclosureControl(site, records=records)
            CountedPatients(site.name, study, patients, split, cells)
        except Refusal as problem:
            yield failed_by("cells", problem)


def _privacy(site: Site, study: Study, records: Records | None) -> Iterator[Finding]:
    if study.privacy is None:
        return
    if records is None:
        yield skipped("privacy", "not until the state is fixed")
        return
    if problem := problem_with_cost(site, study, records):
        remedy = "for a new run ask for a smaller privacy.epsilon; it is your decision"
        if not records.privacy.spent(dataset_of(site), study.digest).by_study:
            yield failed("privacy", problem, remedy)
            return
        yield warning("privacy", f"{CAN_CONTINUE}: {problem}", remedy)
    for line in promised(site, study, records):
        yield ok("privacy", line)


def _samples(study: Study, patients: Patients) -> str:
    """Return what is trained on: rows, which are patients where each has one, or images."""
    if isinstance(study.task, ImageTask):
        return "images"
    return "patients" if patients.num_patients == len(patients.targets) else "rows"


MODEL = "model"


def check_model(site: Site, study: Study) -> Iterator[Finding]:
    """Check the code and its hash, the weights file, and the trained parameters."""
    model = study.model
    if isinstance(model, InstalledModel):
        yield _code(model)
        if problem := problem_with_code(model, site.limits):
            yield failed(
                MODEL,
                f"the study wants {problem}",
                "read the package's code; if this hospital is to run it, write under"
                f' [limits.installed_models]: "{model.entry_point}" = "{model.sha256}"',
            )
            yield skipped(MODEL, "its code is not run before the limits allow it")
            return
    try:
        study.check_model()
        shape, outputs = study.task.input_shape, study.task.num_outputs
        module = build_model(model, shape, outputs, study.seed, weights=site.compute.weights)
    except ModelError as problem:
        yield failed_by(MODEL, problem)
        return
    if model.pretrained is not None:
        file = model.pretrained
        fresh = f"; afresh start {', '.join(file.new)}" if file.new else ""
        yield ok(MODEL, f"starts from {file.file}, SHA-256 {file.sha256}{fresh}")
    yield ok(MODEL, f"{model.described()}: {_parameter_counts(module)}")
    if tied := tied_names(module):
        yield warning(MODEL, f"parameters with two names travel once: {some(tied)}", "")


def _code(model: InstalledModel) -> Finding:
    try:
        found = installed_part("model", model.entry_point)
    except ModelError as problem:
        return failed_by(MODEL, problem)
    what = f"{found.name!r} is {found.target} of {found.distribution}, SHA-256 {found.sha256}"
    if found.sha256 == model.sha256:
        return ok(MODEL, what)
    remedy = "install the version of the package that the study was written for"
    return failed(MODEL, f"{what}; the study names {model.sha256}", remedy)


def _parameter_counts(module: nn.Module) -> str:
    travelling = {name: p.numel() for name, p in named_trained_parameters(module)}
    frozen = {n: p.numel() for n, p in module.named_parameters() if not p.requires_grad}
    text = f"{sum(travelling.values()):,} parameters travel"
    if frozen:
        text += f"; {sum(frozen.values()):,} are frozen and never do ({some(list(frozen))})"
    buffers = sum(buffer.numel() for buffer in module.buffers())
    return text + (f"; {buffers:,} numbers of its buffers stay as they are" if buffers else "")


_PEERS_REMEDY = (
    "ask the coordinator for peers.pem (erosion enroll peers), then `erosion enroll pin peers.pem"
    " SITE.toml` here"
)


def check_sealed(site: Site, study: Study | None) -> Iterator[Finding]:
    """Check the other hospitals' keys for sealed rounds, and a sum of all with equal weights."""
    what, path = "sealed rounds", site.sealed.peers
    needed = study is not None and study.federation.sealed and site.name in study.hospitals
    if path is None or not os.access(path, os.F_OK):
        nothing = f"there is no {path}, which sealed rounds need"
        yield failed(what, nothing, _PEERS_REMEDY) if needed else skipped(what, nothing)
        return
    if site.sealed.private_key is None and site.coordinator.private_key is None:
        yield failed(what, "this site has no private key", "enrol it; the key is in the kit")
        return
    try:
        keys = read_pinned_keys(path, SiteError)
    except SiteError as problem:
        yield failed_by(what, problem)
        return
    yield ok(
        what,
        "the others' keys, to be compared with each hospital itself, not with the coordinator:\n"
        + "\n".join(f"{name}  {fingerprint(keys[name])}" for name in sorted(keys)),
    )
    if study is None or not needed:
        return
    peers, rules = set(study.hospitals) - {study.user}, sum_rules(site)
    if missing := sorted(peers - {site.name} - set(keys)):
        yield failed(what, f"the keys of {', '.join(missing)} are not in {path}", _PEERS_REMEDY)
    alike = dict.fromkeys(peers, 1 / len(peers))
    refusal = rules.problem_with_holders(peers) or rules.problem_with(alike)
    if refusal and site.name != study.user:
        yield failed(
            what,
            f"this site would take part in none, even if everybody is there: {refusal}",
            "name more hospitals in limits.summed_with that people here know, or loosen"
            " limits.min_summed and limits.largest_share; it is your decision",
        )
