"""Fed-Heart-Disease (du Terrail et al., FLamby, 2022): each of four hospitals as the user.

FLamby's split of the patients and others drawn in the same way. The number of rounds of every arm
is chosen on a third of the user's training patients; everything else is as the shipped study has
it. `pooled` is what nobody may do: one model trained on all hospitals' patients in one place.
"""

import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from erosion.simulation.testbed import study_path
from erosion.sources import make_hospitals
from erosion.sources.flamby import FLAMBY_SEED, TRAINING_SHARE
from erosion_common.study.study import Study, load_study
from experiments.cells import Cell, CellPlan, Values, planned
from experiments.experiment import experiment
from experiments.page import Page, constants, page, where
from experiments.papers import fed_heart_published
from experiments.papers.flamby import (
    ARMS,
    FOLDS,
    POOLED,
    OtherSplits,
    arms_and_pooled,
    by_arm,
    by_user,
    of_arms,
    study_for,
)
from experiments.papers.rules import FINISH, RECOMMENDED, RECOMMENDED_ARM, Arms
from experiments.splits import measured, one_split
from experiments.tables import wilson

SPLITS = (FLAMBY_SEED, *(split for split in range(101) if split != FLAMBY_SEED))
METRICS = ("accuracy", "auroc", "brier")
ROWS = ("majority", POOLED, *ARMS)
OTHER_SPLITS = OtherSplits(
    rows=ROWS,
    columns={"accuracy": "accuracy", "AUROC": "auroc", "Brier score": "brier"},
    compared={"accuracy": "accuracy", "auroc": "auroc"},
    lower_is_better=(),
    test_share=1 - TRAINING_SHARE,
)
PUBLISHED: Mapping[str, Sequence[float | None]] = constants("published")["fed-heart"]
AS_PERSONAL = "as FL4Health"
PERSONAL_ARMS: Arms = {
    **{name: {} for name in ("local", "fedavg", "fedper")},
    RECOMMENDED: RECOMMENDED_ARM,
    f"{RECOMMENDED}_finish": {**RECOMMENDED_ARM, **FINISH},
}
PERSONAL_STUDY: Mapping[str, Any] = {
    "model": {"name": "mlp", "hidden": [10]},
    "training": {"steps": 100, "batch_size": 4, "learning_rate": 0.001, "optimizer": "adam"},
    "rounds": 15,
}
PERSONAL_SEEDS = (42,)


def plans() -> list[CellPlan]:
    """Return a cell for each split and user, FLamby's split first; then others' own training."""
    points = ({"user": user, "split": split} for split in SPLITS for user in _users())
    ours = planned("{user}-split{split}", points, arms=ARMS, folds=FOLDS, version=2)
    points = ({"user": user, "seed": seed} for seed in PERSONAL_SEEDS for user in _users())
    same: Any = {"kind": AS_PERSONAL, "arms": PERSONAL_ARMS, "study": PERSONAL_STUDY, "version": 1}
    personal = planned("personal-{user}-seed{seed}", points, **same)
    return [*ours, *personal, *fed_heart_published.plans()]


def study_of(config: Values) -> Study:
    """Return the shipped study for the cell's user and split, or that with FLamby's patients."""
    if config.get("kind") == fed_heart_published.KIND:
        return fed_heart_published.study()
    if "kind" not in config:
        return study_for("heart-disease", config, split_seed=config["split"], bootstrap=100)
    given = {**config, "split": config["seed"], "folds": FOLDS, "arms": ["local"]}
    study = study_for("heart-disease", given, split_seed=FLAMBY_SEED, bootstrap=100)
    changed = {**config["study"], "arms": config["arms"]}  # a third chooses the round
    return Study.model_validate(study.model_dump(mode="json") | changed)


def run(config: Values, data_dir: Path | None) -> Values:
    """Run all arms of one user on one split, or others' own training."""
    if config.get("kind") == fed_heart_published.KIND:
        return fed_heart_published.run(config, data_dir)
    study = study_of(config)
    if "kind" in config:
        figures = measured(one_split(study, data_dir).arms, METRICS)
        return figures
    with tempfile.TemporaryDirectory() as folder:
        found = arms_and_pooled(study, make_hospitals(study, Path(folder), data_dir), "majority")
    return {**measured(found, METRICS), "patients": found["majority"].num_patients}


def draw(cells: Mapping[str, Cell]) -> Page:
    """Draw FLamby's split with its table; other splits for each hospital; ours against others."""
    users = _users()
    by_split = by_user({n: c for n, c in cells.items() if "split" in c.plan.config}, users)
    found = {user: of[FLAMBY_SEED] for user, of in by_split.items() if FLAMBY_SEED in of}
    others = {
        user: [figures for split, figures in of.items() if split != FLAMBY_SEED]
        for user, of in by_split.items()
    }
    again = [cell.figures for cell in where(cells, kind=fed_heart_published.KIND)]
    accuracies = dict(PUBLISHED)
    for arm in fed_heart_published.ARMS if again else ():
        values = ([figures[arm][user] for figures in again] for user in users)
        accuracies[f"its training repeated, {arm}"] = [100 * fmean(of) for of in values]
    personal = {user: where(cells, kind=AS_PERSONAL, user=user) for user in users}
    for arm in PERSONAL_ARMS if all(personal.values()) else ():
        values = ([cell.figures[arm]["accuracy"] for cell in of] for of in personal.values())
        accuracies[f"FL4Health's setting, {arm}"] = [100 * fmean(of) for of in values]
    for arm, of in of_arms(found, users, ROWS, "accuracy").items():
        accuracies[arm] = [None if value is None else 100 * value for value in of]
    patients = ", ".join(f"{user} {figures['patients']}" for user, figures in found.items())
    intervals = ", ".join(
        f"{user} {100 * low:.0f} to {100 * high:.0f}"
        for user, figures in found.items()
        for low, high in [wilson(figures["local"]["accuracy"], figures["patients"])]
    )
    training = load_study(study_path("heart-disease")).training
    return page(
        "fed-heart",
        patients=patients,
        intervals=intervals,
        seeds=len(again),
        published=fed_heart_published,
        rate=f"{fed_heart_published.RATE:g}",
        our_rate=f"{training.learning_rate:g}",
        our_batch=training.batch_size,
        hidden=PERSONAL_STUDY["model"]["hidden"][0],
        personal_rate=f"{PERSONAL_STUDY['training']['learning_rate']:g}",
        with_its_setting=all(personal.values()),
        accuracies=by_arm(users, accuracies, ".1f"),
        aurocs=by_arm(users, of_arms(found, users, ROWS[1:], "auroc"), ".3f"),
        **OTHER_SPLITS.draw(others),
    )


@cache
def _users() -> Sequence[str]:
    return load_study(study_path("heart-disease")).hospitals


EXPERIMENT = experiment(
    "fed-heart",
    plans,
    run,
    draw,
    study_of,
)
