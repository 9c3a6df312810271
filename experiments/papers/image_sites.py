"""Image studies with each hospital as the user: real sites (HAM10000), skewed labels (CIFAR-10).

Rounds, steps and the rules' constants are those of the shipped studies and the defaults. A hospital
of few pictures that trains alone may be trained for too long so: `local_stopped` chooses its number
of rounds on a third of the user's training pictures. `pooled` is what nobody may do: one model
trained on all hospitals' pictures in one place.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from erosion.client.dataset.load import Patients, read_patients
from erosion.client.dataset.sources.data_source import LabelledImages
from erosion.client.dataset.split import split_patients
from erosion.client.site_file import Site
from erosion.client.training.hospital import Hospital
from erosion.common.protocol.messages import Metrics
from erosion.common.rounds.records import RoundRecord
from erosion.common.study.study import Study, load_study
from erosion.experiments.cells import CellPlan, Tick, Values
from erosion.experiments.every_user import site_of
from erosion.experiments.papers.held_images import HeldImages, without_notes
from erosion.experiments.papers.rules import RECOMMENDED, RECOMMENDED_ARM, Arms
from erosion.experiments.simulator import Simulation, simulate, timeless
from erosion.experiments.sources import make_hospitals
from erosion.experiments.splits import shipped_study
from erosion.experiments.testbed import study_path

STUDIES, SPLITS = ("ham10000", "cifar10"), 8
FOLDS = 3
METRICS = ("accuracy", "auroc", "log_loss")
ARMS: Arms = {
    "local": {},
    "fedavg": {},
    "fine_tuning": {},
    "ditto": {},
    "weighted_gradient": {},
    "bias_correction": {},
    "weight_erosion": {},
    RECOMMENDED: RECOMMENDED_ARM,
    "evidence_erosion": {"noise_margin": 0.0},  # as it says of networks
}
WEIGHING = ("weight_erosion", RECOMMENDED, "evidence_erosion")  # each hospital by itself
MAJORITY, POOLED, LOCAL_STOPPED = "majority", "pooled", "local_stopped"


def plans() -> Sequence[CellPlan]:
    """A cell for each study, user and split; all users of one split before the next."""
    return [
        CellPlan(
            f"{study}-{user}-{split}",
            {
                "study": study,
                "user": user,
                "seed": split,
                "arms": dict(ARMS),
                "folds": FOLDS,
                "version": 1,
            },
            rounds=3,
        )
        for split in range(SPLITS)
        for study in STUDIES
        for user in users_of(study)
    ]


def users_of(study: str) -> Sequence[str]:
    """Every collection; of the hospitals that are drawn anew in each split, the first."""
    hospitals = load_study(study_path(study)).hospitals
    return hospitals if study == "ham10000" else hospitals[:1]


def study_of(config: Values) -> Study:
    """The cell as a study of this program."""
    chosen = {key: config[key] for key in ("user", "seed", "arms")}
    return shipped_study(config["study"], **chosen)


def stopped(study: Study, folds: int) -> Study:
    """The user alone, its number of rounds chosen on one of so many parts of its training part."""
    return Study.model_validate(
        study.model_dump(mode="json")
        | {"arms": {"local": {}}, "selection": {"method": "validation", "folds": folds}}
    )


def run(config: Values, data_dir: Path | None, tick: Tick) -> Values:
    """All arms of one user on one split."""
    study = study_of(config)
    with tempfile.TemporaryDirectory() as folder, without_notes():
        files = make_hospitals(study, Path(folder), data_dir)
        sites = {name: site_of(name, file) for name, file in files.items()}
        apart = _simulated(study, sites)
        tick()
        alone = _simulated(stopped(study, config["folds"]), sites)
        tick()
        together, site = in_one_place(study, sites)
        pooled = _simulated(together, {study.user: site})
        tick()
        tested = _tested(study, read_patients(sites[study.user].data, study))
    base_rate = apart.evaluation.base_rate
    assert base_rate is not None
    figures: dict[str, Any] = {arm: _figures(apart, arm) for arm in config["arms"]}
    for arm in WEIGHING:
        if arm in figures:
            figures[arm]["weights"] = mean_weights(apart.records[arm], study.user)
    return {
        **figures,
        LOCAL_STOPPED: _figures(alone, "local") | {"rounds": alone.choices["local"].rounds},
        POOLED: _figures(pooled, "local"),
        MAJORITY: _rounded(base_rate),
        "pictures": len(tested),
    }


def _tested(study: Study, own: Patients) -> NDArray[np.int64]:
    """The user's test pictures, by their places."""
    return split_patients(study, study.user, own.rows, own.targets, own.groups).test


def in_one_place(study: Study, sites: Mapping[str, Site]) -> tuple[Study, Site]:
    """A study of one hospital with everybody's pictures and the user's test part.

    It takes as many local steps in a round as all hospitals together.
    """
    found = {name: read_patients(site.data, study) for name, site in sites.items()}
    own = found.pop(study.user)
    is_test = np.isin(np.arange(len(own.targets)), _tested(study, own))
    groups = [own.groups]
    for other in found.values():
        groups.append(other.groups + 1 + groups[-1].max())
    every = (own, *found.values())
    images = np.concatenate([patients.rows for patients in every]).astype(np.uint8, copy=False)
    held = LabelledImages(
        images,
        np.concatenate([patients.targets for patients in every]),
        tuple(f"number {place}" for place in range(len(images))),
        np.concatenate(groups),
        is_test=np.pad(is_test, (0, len(images) - len(is_test))),
    )
    raw = study.model_dump(mode="json")
    together = Study.model_validate(
        raw
        | {
            "hospitals": [study.user],
            "arms": {"local": {}},
            "training": raw["training"] | {"steps": raw["training"]["steps"] * len(sites)},
            "federation": raw["federation"] | {"quorum": 1},
        }
    )
    return together, sites[study.user].model_copy(update={"data": HeldImages.of(held)})


def _simulated(study: Study, sites: Mapping[str, Site]) -> Simulation:
    hospitals = {name: Hospital(site) for name, site in sites.items()}
    return simulate(study, hospitals, clock=timeless)


def _figures(found: Simulation, arm: str) -> dict[str, Any]:
    return _rounded(found.evaluation.arms[arm])


def _rounded(metrics: Metrics) -> dict[str, Any]:
    found = {name: metrics.get(name) for name in METRICS}
    return {name: None if value is None else round(value, 5) for name, value in found.items()}


def mean_weights(records: Sequence[RoundRecord], user: str) -> dict[str, float]:
    """Over the rounds, of each other hospital relative to the user's own."""
    by_hospital: dict[str, list[float]] = {}
    for record in records:
        for name, entry in record.hospitals.items():
            if name != user and entry.weight_after is not None:
                by_hospital.setdefault(name, []).append(entry.weight_after)
    return {name: round(fmean(weights), 4) for name, weights in by_hospital.items()}
