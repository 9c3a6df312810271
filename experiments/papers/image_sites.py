"""Image studies with each hospital as the user: real sites (HAM10000), skewed labels (CIFAR-10).

Rounds, steps and the rules' constants are those of the shipped studies and the defaults. A hospital
of few pictures that trains alone may be trained for too long so: `local_stopped` chooses its number
of rounds on a third of the user's training pictures. `pooled` is what nobody may do: one model
trained on all hospitals' pictures in one place."""

import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import PrivateAttr

from erosion.simulation.simulator import Simulation
from erosion.simulation.testbed import study_path
from erosion.simulation.testbed_sites import site_of
from erosion.sources import make_hospitals
from erosion_client.dataset.load import Patients, read_patients
from erosion_client.dataset.sources.data_source import ImageSource, LabelledImages
from erosion_client.dataset.split import split_patients
from erosion_client.finding import Finding
from erosion_client.site_file import Site
from erosion_common.errors import DivergedError
from erosion_common.protocol.messages import Metrics
from erosion_common.rounds.records import RoundRecord
from erosion_common.study.study import Study, load_study
from erosion_common.tasks.inputs import ImageTask
from experiments.cells import Cell, CellPlan, Values, planned
from experiments.experiment import experiment
from experiments.page import Page, bullets, joined, page, table, where
from experiments.papers.rules import (
    FINISH,
    PERSONAL,
    RECOMMENDED,
    RECOMMENDED_ARM,
    SPLIT_MODELS,
    Arms,
)
from experiments.splits import shipped_study, simulated_on
from experiments.tables import (
    Comparison,
    comparison_table,
    comparisons,
    figures_of,
    in_words,
    intervals,
)


class HeldImages(ImageSource):
    """A source that gives the images which it holds."""

    _held: LabelledImages = PrivateAttr()

    @classmethod
    def of(cls, held: LabelledImages) -> "HeldImages":
        """Return a source that gives these."""
        source = cls()
        source._held = held
        return source

    def describe(self) -> str:
        """Return what they are."""
        return "The images in memory"

    def check(self) -> Iterator[Finding]:
        """They are there."""
        return iter(())

    def read(self, task: ImageTask, *, with_target: bool = True) -> LabelledImages:
        """Return the images."""
        del task, with_target
        return self._held


@contextmanager
def without_notes() -> Iterator[None]:
    """Every hospital would warn, in every run, of images that look alike."""
    log = logging.getLogger("erosion.site")
    before = log.disabled
    log.disabled = True
    try:
        yield
    finally:
        log.disabled = before


STUDIES, SPLITS = ("ham10000", "cifar10"), 50
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
# What came later has cells of its own.
NEWER: Arms = {
    "local": {},
    **{name: {} for name in (*PERSONAL, *SPLIT_MODELS) if name != "fedbn"},  # nothing is normalised
    f"{RECOMMENDED}_finish": {**RECOMMENDED_ARM, **FINISH},
}
WEIGHING = ("weight_erosion", RECOMMENDED, "evidence_erosion")  # each hospital separately
MAJORITY, POOLED, LOCAL_STOPPED = "majority", "pooled", "local_stopped"
DIVERGED = "diverged"  # why an arm has no figures


def plans() -> list[CellPlan]:
    """Return a cell for each study, user and split; all users of one split before the next."""

    points = [
        {"study": study, "user": user, "seed": split}
        for split in range(SPLITS)
        for study in STUDIES
        for user in users_of(study)
    ]
    same = {"arms": ARMS, "folds": FOLDS, "version": 1}
    newer = {"part": "newer", "arms": NEWER}
    return [
        *planned("{study}-{user}-{seed}", points, **same),
        *planned("{part}-{study}-{user}-{seed}", points, **newer),
    ]


def users_of(study: str) -> Sequence[str]:
    """Return every collection; of hospitals that are drawn again in each split, the first."""
    hospitals = load_study(study_path(study)).hospitals
    return hospitals if study == "ham10000" else hospitals[:1]


def study_of(config: Values) -> Study:
    """Return the cell as a study of this program."""
    chosen = {key: config[key] for key in ("user", "seed", "arms")}
    return shipped_study(config["study"], **chosen)


def stopped(study: Study, folds: int) -> Study:
    """Return the user alone, its rounds chosen on one fold of its training part."""
    return Study.model_validate(
        study.model_dump(mode="json")
        | {"arms": {"local": {}}, "selection": {"method": "validation", "folds": folds}}
    )


def run(config: Values, data_dir: Path | None, device: str = "cpu") -> Values:
    """Run all arms of one user on one split."""
    study = study_of(config)
    with tempfile.TemporaryDirectory() as folder, without_notes():
        files = make_hospitals(study, Path(folder), data_dir)
        sites = {name: site_of(name, file, device=device) for name, file in files.items()}
        if "part" in config:
            return _newer(study, sites)
        apart = simulated_on(study, sites)
        alone = simulated_on(stopped(study, config["folds"]), sites)
        together, site = in_one_place(study, sites)
        pooled = simulated_on(together, {study.user: site})
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


def _newer(study: Study, sites: Mapping[str, Site]) -> Values:
    """Return every arm's figures, where one diverges each from a simulation of its own."""
    try:
        found = simulated_on(study, sites)
        return {arm: _figures(found, arm) for arm in study.arms}
    except DivergedError:
        return {arm: _by_itself(study, arm, sites) for arm in study.arms}


def _by_itself(study: Study, arm: str, sites: Mapping[str, Site]) -> Values:
    """Return an arm's figures, or None for each and what was said if it diverges."""
    raw = study.model_dump(mode="json")
    only = Study.model_validate(raw | {"arms": {arm: raw["arms"][arm]}})
    try:
        return _figures(simulated_on(only, sites), arm)
    except DivergedError as problem:
        return dict.fromkeys(METRICS) | {DIVERGED: str(problem)}


def _tested(study: Study, own: Patients) -> NDArray[np.int64]:
    """Return the user's test pictures, by their places."""
    return split_patients(study, study.user, own.rows, own.targets, own.groups).test


def in_one_place(study: Study, sites: Mapping[str, Site]) -> tuple[Study, Site]:
    """Return a study of one hospital with everybody's pictures and the user's test part.

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


LABELS: Mapping[str, str] = {"accuracy": "accuracy", "auroc": "AUROC", "log_loss": "log loss"}
SIGNS: Mapping[str, int] = {"accuracy": 1, "auroc": 1, "log_loss": -1}  # 1: the higher the better
OURS = (RECOMMENDED, "evidence_erosion")
OTHERS = ("local", LOCAL_STOPPED, "fedavg", "fine_tuning")
ROWS = (MAJORITY, "local", LOCAL_STOPPED, POOLED, *(arm for arm in ARMS if arm != "local"))
EVERY = "mean of all"  # users
FEWEST_SPLITS = 4  # of an interval: with fewer it is wider than the metric itself
TITLES: Mapping[str, str] = {
    "ham10000": "HAM10000: four collections of skin lesions",
    "cifar10": "CIFAR-10: skewed labels",
}
ABOUT: Mapping[str, str] = {
    "ham10000": "Seven diagnoses, of which naevi are the commonest. All pictures of a lesion are on"
    " one side of a split, and lesions of two collections are left out. Splits share pictures: an"
    " interval is about splits of these collections.",
    "cifar10": "Every split draws five other hospitals, and so other shares of the ten classes; few"
    " images are in two of them.",
}

ByUser = Mapping[str, Mapping[int, Values]]  # user -> split -> figures


def draw(cells: Mapping[str, Cell]) -> Page:
    """Draw a section for each study of which a cell was run."""
    return page(
        "image-sites",
        studies=[of for s in STUDIES if (of := _of_study(s, cells))],
        fewest=FEWEST_SPLITS,
    )


def _of_study(study: str, cells: Mapping[str, Cell]) -> dict[str, Any] | None:
    found = {
        user: {
            cell.plan.config["seed"]: cell.figures
            for cell in where(cells, study=study, user=user)
            if "part" not in cell.plan.config
        }
        for user in users_of(study)
    }
    found = {user: splits for user, splits in found.items() if splits}
    if not found:
        return None
    shipped = load_study(study_path(study))
    training = shipped.training
    tested = ", ".join(
        f"{user} {len(splits)} ({fmean(f['pictures'] for f in splits.values()):.0f} test pictures;"
        f" alone stopped after {fmean(f[LOCAL_STOPPED]['rounds'] for f in splits.values()):.1f}"
        " rounds)"
        for user, splits in found.items()
    )
    every = _comparisons(found)
    hospitals = users_of(study)
    return {
        "title": TITLES[study],
        "about": ABOUT[study],
        "rounds": shipped.rounds,
        "training": training,
        "rate": f"{training.learning_rate:g}",
        "tested": tested,
        "metrics": joined(_of_metric(metric, found) for metric in METRICS),
        "intervals": intervals(f"all {len(every)}"),
        "against": comparison_table(
            every,
            lambda one: [one.setting, one.ours],
            lambda one: f"{LABELS[one.metric]}: {one.other}",
        ),
        "num_clear": sum(one.is_clear for one in every),
        "comparisons": len(every),
        "supported": bullets(_supported(every)),
        "weights": table(["user", "", *hospitals], _weights(hospitals, found))
        if len(hospitals) > 1
        else "",
    }


def _of_metric(metric: str, found: ByUser) -> str:
    """Return an arm a line: the metric for each user, and the mean over users."""
    rows = []
    for arm in ROWS:
        values = [figures_of(splits.values(), arm, metric) for splits in found.values()]
        row = [arm, *map(in_words, values)]
        if len(found) > 1:
            row.append(f"{fmean(map(fmean, values)):.3f}" if all(values) else "")
        rows.append(row)
    return table([LABELS[metric], *found, *(["mean"] if len(found) > 1 else [])], rows)


def _mean_of_users(found: ByUser) -> list[Values]:
    """Return the means over users, of the splits that all of them have."""

    def mean(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return fmean(known) if len(known) == len(values) else None

    return [
        {
            arm: {name: mean([of[split][arm][name] for of in found.values()]) for name in METRICS}
            for arm in (*OURS, *OTHERS)
        }
        for split in sorted(set.intersection(*(set(splits) for splits in found.values())))
    ]


def _comparisons(found: ByUser) -> list[Comparison[str]]:
    """Return those of every user with that many splits, and of the mean of all."""
    measured = {user: list(splits.values()) for user, splits in found.items()}
    if len(found) > 1:
        measured[EVERY] = _mean_of_users(found)
    measured = {user: splits for user, splits in measured.items() if len(splits) >= FEWEST_SPLITS}
    return comparisons(measured, OURS, OTHERS, METRICS, fewest=FEWEST_SPLITS)


def _supported(every: Sequence[Comparison[str]]) -> Iterator[str]:
    """Return the differences that an interval supports, in sentences."""
    for ours in OURS:
        for word, sign in (("better", 1), ("worse", -1)):
            of = [
                f"{one.other} for {one.setting} ({LABELS[one.metric]})"
                for one in every
                if one.ours == ours and one.difference and one.is_clear
                if one.difference.mean * SIGNS[one.metric] * sign > 0
            ]
            yield f"`{ours}` is {word} than {', '.join(of) or 'none of them'}."


def _weights(hospitals: Sequence[str], found: ByUser) -> Iterator[list[str]]:
    for user, splits in found.items():
        for arm in WEIGHING:
            weights = [split[arm]["weights"] for split in splits.values()]
            means = (
                "own" if name == user else f"{fmean(of[name] for of in weights):.2f}"
                for name in hospitals
            )
            yield [user, arm, *means]


EXPERIMENT = experiment(
    "image-sites",
    plans,
    run,
    draw,
    study_of,
)
