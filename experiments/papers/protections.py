"""The cost of the protections: the default study with a site's protections on and off, over splits.

The errors are those of the user's test patients. What is measured in seconds is one answer of one
hospital to one round: the training alone, and with the records of answers and the log of what is
sent, both of which are on the disk before the answer leaves.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from flwr.app import Context, Message, RecordDict

from erosion.simulation.simulator import simulate, timeless
from erosion.simulation.testbed import study_path
from erosion.simulation.testbed_sites import site_of
from erosion.sources import Data, make_hospitals
from erosion_client.connection.serve import make_app
from erosion_client.consent.consent import Consent
from erosion_client.records.audit_log import AuditLog
from erosion_client.records.records import Records
from erosion_client.site_file import Site
from erosion_client.training.hospital import Hospital
from erosion_common.protocol import wire
from erosion_common.protocol.messages import TrainRequest
from erosion_common.study.study import Study, load_study
from experiments.cells import Cell, CellPlan, Values, planned
from experiments.experiment import experiment
from experiments.page import Page, page, table, where
from experiments.tables import in_words, one_or_range

STUDY, ARM, SEEDS = "breast-cancer", "weight_erosion", 40
VARIANTS: Mapping[str, Values] = {
    "cells of 3, public order": {"min_cell": 3, "secret": False},
    "secret order": {"min_cell": 3, "secret": True},
    "cells of 10": {"min_cell": 10, "secret": False},
    "cells of 10, secret order": {"min_cell": 10, "secret": True},
    "cells of 10, secret order, float16": {"min_cell": 10, "secret": True, "compress": "float16"},
    "cells of 10, secret order, int8": {"min_cell": 10, "secret": True, "compress": "int8"},
}
REFERENCE = next(iter(VARIANTS))
ROUNDS_TIMED, TIMED_SEEDS = 300, 3
TIMED = ("alone", "with_records")


def plans() -> list[CellPlan]:
    """Return every variant with the same splits, and what an answer takes."""
    found = [
        CellPlan(
            f"{'-'.join(name.replace(',', '').split())}-seed{seed}",
            {"variant": name, "study": STUDY, "seed": seed, "version": 2, **settings},
        )
        for name, settings in VARIANTS.items()
        for seed in range(SEEDS)
    ]
    seeds = ({"seed": seed} for seed in range(TIMED_SEEDS))
    return [*found, *planned("answer-seed{seed}", seeds, timed=ROUNDS_TIMED, study=STUDY)]


def study_of(config: Values) -> Study:
    """Return the shipped study with the cell's seed, and what is measured or timed of it."""
    study = load_study(study_path(config["study"]))
    raw = {**study.model_dump(), "seed": config["seed"]}
    if "timed" in config:
        return Study.model_validate({**raw, "rounds": config["timed"], "scaling": "none"})
    compression = {**study.federation.model_dump(), "compression": config.get("compress", "none")}
    raw |= {"arms": {ARM: study.arms[ARM]}, "federation": compression}
    raw["evaluation"] = {**study.evaluation.model_dump(), "compare": None}
    return Study.model_validate(raw)


def run(config: Values, data_dir: Path | None) -> Values:
    """Errors and log loss of the user's test patients, or seconds of an answer."""
    study = study_of(config)
    with tempfile.TemporaryDirectory() as name:
        files = make_hospitals(study, Path(name), data_dir)
        if "timed" in config:
            asked = next(hospital for hospital in study.hospitals if hospital != study.user)
            site = site_of(asked, files[asked])
            found = (_seconds(site, study, records) for records in (None, Path(name)))
            figures: Values = dict(zip(TIMED, found, strict=True))
        else:
            figures = _measured(study, files, config)
    return figures


def _measured(study: Study, files: Mapping[str, Data], config: Values) -> Values:
    hospitals = {}
    for hospital, file in files.items():
        site = site_of(hospital, file)
        limits = site.limits.model_copy(update={"min_cell": config["min_cell"]})
        secret = f"{hospital} {config['seed']}".encode() if config["secret"] else b""
        hospitals[hospital] = Hospital(site.model_copy(update={"limits": limits}), secret)
    found = simulate(study, hospitals, clock=timeless).evaluation.arms[ARM]
    return {
        "errors": round((1 - found["accuracy"]) * found.num_patients),
        "patients": found.num_patients,
        "log_loss": round(found["log_loss"], 6),
    }


def _seconds(site: Site, study: Study, records: Path | None) -> float:
    """Median seconds of an answer, without and with the records that a site keeps."""
    hospital, took = Hospital(site, b"secret"), []
    dim = max(place.stop for place in study.build_context.layout().values())
    requests = [
        TrainRequest(study, "fedavg", number, torch.zeros(dim), None, "r1")
        for number in range(1, study.rounds + 1)
    ]
    if records is None:
        for asked in requests:
            started = perf_counter()
            hospital.train(asked)
            took.append(perf_counter() - started)
        return round(median(took), 6)
    automatic = site.approval.model_copy(update={"automatic": "within_limits"})
    site = site.model_copy(update={"approval": automatic})
    app = make_app(hospital, Consent(site, Records(records / "state", site.name), "coordinator"))
    context = Context(0, 0, {}, RecordDict(), {})
    with AuditLog(records / "records") as log:
        for asked in requests:
            message = Message(wire.Encoder().encode(asked), 1, wire.TRAIN)
            started = perf_counter()
            log.record(message, app(message, context))
            took.append(perf_counter() - started)
    return round(median(took), 6)


def draw(cells: Mapping[str, Cell]) -> Page:
    """Errors by variant and what differs from the first, and the seconds."""
    by_variant = {
        name: {cell.plan.config["seed"]: cell.figures for cell in where(cells, variant=name)}
        for name in VARIANTS
    }
    reference = by_variant[REFERENCE]
    rows = []
    for name, found in by_variant.items():
        seeds = sorted(set(found) & set(reference))
        if len(seeds) < 2:
            continue
        errors = [found[seed]["errors"] for seed in seeds]
        apart, losses = (
            [found[seed][figure] - reference[seed][figure] for seed in seeds]
            for figure in ("errors", "log_loss")
        )
        columns = [in_words(apart, "+.2f"), in_words(losses, "+.4f")]
        more = ["", ""] if name == REFERENCE else columns
        rows.append([name, in_words(errors, ".2f"), *more, str(len(seeds))])
    patients = one_or_range([f["patients"] for f in reference.values()] or [0])
    timed = [cell.figures for cell in where(cells, timed=ROUNDS_TIMED)]
    head = ["protections", "errors", "more errors than the first", "more log loss", "splits"]
    return page(
        "protections",
        arm=ARM,
        study=STUDY,
        patients=patients,
        errors=table(head, rows),
        milliseconds=[f"{1000 * median(found[key] for found in timed):.1f}" for key in TIMED]
        if timed
        else [],
        rounds=ROUNDS_TIMED,
        times=len(timed),
    )


EXPERIMENT = experiment(
    "protections",
    plans,
    run,
    draw,
    study_of,
)
