"""Fed-Heart-Disease (du Terrail et al., FLamby, 2022): each of four hospitals as the user.

FLamby's split of the patients and others drawn in the same way. The number of rounds of every arm
is chosen on a third of the user's training patients; everything else is as the shipped study has
it. `pooled` is what nobody may do: one model trained on all hospitals' patients in one place.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from erosion.simulation.testbed import study_path
from erosion.sources import make_hospitals
from erosion.sources.flamby import FLAMBY_SEED, TRAINING_SHARE
from erosion_common.study.study import Study, load_study
from experiments.cells import Cell, CellPlan, Tick, Values
from experiments.experiment import Page
from experiments.papers import fed_heart_published
from experiments.papers.flamby import (
    ARMS,
    FOLDS,
    POOLED,
    OtherSplits,
    arms_and_pooled,
    by_arm,
    by_user,
    study_for,
)
from experiments.tables import paragraph, wilson

SPLITS = (FLAMBY_SEED, *(split for split in range(101) if split != FLAMBY_SEED))
METRICS = ("accuracy", "auroc", "brier")
ROWS = ("majority", POOLED, *ARMS)
OTHER_SPLITS = OtherSplits(
    rows=ROWS,
    columns={"accuracy": "accuracy", "auroc": "AUROC", "brier": "Brier score"},
    remark="error over splits. The Brier score is that of the positive class: from 0 to 1, less is"
    " better.",
    compared={"accuracy": "accuracy", "auroc": "auroc"},
    lower_is_better=(),
    direction="Above 0 ours is better.",
    sometimes="auroc",
    where_defined="Splits, which share patients, and in brackets those with a test part of both"
    " classes, for AUROC",
    test_share=1 - TRAINING_SHARE,
)
# Accuracy in percent, FLamby's table for the four hospitals, mean over its seeds 42 to 46.
PUBLISHED: Mapping[str, tuple[float, ...]] = {
    "FLamby, pooled": (78.3, 76.4, 75.0, 64.4),
    "FLamby, local": (74.6, 74.6, 72.5, 70.2),
    "FLamby, FedAvg": (73.1, 71.9, 65.0, 64.0),
}


def plans() -> Sequence[CellPlan]:
    """Return a cell for each split and user, FLamby's split first; then FLamby's own training."""
    ours = [_plan(user, split) for split in SPLITS for user in _users()]
    return [*ours, *fed_heart_published.plans()]


def _plan(user: str, split: int) -> CellPlan:
    config = {"user": user, "split": split, "arms": dict(ARMS), "folds": FOLDS, "version": 2}
    return CellPlan(f"{user}-split{split}", config, rounds=1)


def study_of(config: Values) -> Study:
    """Return the shipped study for the cell's user and split, or that with FLamby's patients."""
    if "kind" in config:
        return fed_heart_published.study()
    return study_for("heart-disease", config, split_seed=config["split"], bootstrap=100)


def run(config: Values, data_dir: Path | None, tick: Tick) -> Values:
    """Run all arms of one user on one split, or FLamby's own training."""
    if "kind" in config:
        return fed_heart_published.run(config, data_dir, tick)
    study = study_of(config)
    with tempfile.TemporaryDirectory() as folder:
        found = arms_and_pooled(study, make_hospitals(study, Path(folder), data_dir), "majority")
    tick()
    return {
        arm: {name: metrics.get(name) for name in METRICS} for arm, metrics in found.items()
    } | {"patients": found["majority"].num_patients}


def draw(cells: Mapping[str, Cell]) -> Page:
    """Draw FLamby's split with its table; other splits for each hospital; ours against others."""
    found = by_user(cells, _users())
    others = {
        user: [figures for split, figures in by_split.items() if split != FLAMBY_SEED]
        for user, by_split in found.items()
    }
    again = [cell.figures for cell in cells.values() if "kind" in cell.plan.config]
    lines = [
        "# Fed-Heart-Disease: each hospital as the user",
        "",
        *paragraph(
            "The patients and columns of FLamby's benchmark. Each arm's number of rounds is chosen"
            " on a third of the user's training patients. *majority* says the commonest class of"
            " the user's training patients to everybody; *pooled* is trained on all hospitals'"
            " patients in one place."
        ),
        *_on_flambys_split(
            {u: f[FLAMBY_SEED] for u, f in found.items() if FLAMBY_SEED in f}, again
        ),
        *OTHER_SPLITS.draw(others),
    ]
    return Page("\n".join(lines))


def _on_flambys_split(found: Mapping[str, Values], again: Sequence[Values]) -> list[str]:
    """Return ours and FLamby's; `again`: its training by our program's data, by seed."""
    users, published = _users(), fed_heart_published
    accuracies: dict[str, Sequence[float | None]] = dict(PUBLISHED)
    for arm in published.ARMS if again else ():
        accuracies[f"its training repeated, {arm}"] = [
            100 * fmean(figures[arm][user] for figures in again) for user in users
        ]
    for arm in ROWS:
        accuracies[arm] = [100 * found[u][arm]["accuracy"] if u in found else None for u in users]
    aurocs = {arm: [found[u][arm]["auroc"] if u in found else None for u in users] for arm in ROWS}
    patients = ", ".join(f"{user} {figures['patients']}" for user, figures in found.items())
    local_intervals = ", ".join(
        f"{user} {100 * low:.0f} to {100 * high:.0f}"
        for user, figures in found.items()
        for low, high in [wilson(figures["local"]["accuracy"], figures["patients"])]
    )
    training = load_study(study_path("heart-disease")).training
    why = (
        f"*Its training repeated* has FLamby's settings: from the random starts of its {len(again)}"
        f" seeds, steps of {published.RATE:g} with {published.BATCH} patients, {published.EPOCHS}"
        f" epochs of Adam, or for FedAvg {published.ROUNDS} rounds of {published.STEPS} steps of"
        " SGD. So far as it comes near the published figures, the gap to ours is not of patients or"
        " columns: after such steps a model is still on its way from its start, with few patients"
        f" most. Ours starts at 0 and takes steps of {training.learning_rate:g} with"
        f" {training.batch_size} patients."
    )
    return [
        "## Accuracy in percent on FLamby's split",
        "",
        *paragraph(
            f"Test patients: {patients}. FLamby's figures are means over five seeds of its"
            " training, ours are of one training. The 95 % binomial interval (Wilson) of the"
            f" accuracy of training alone: {local_intervals}. A gap that is small against it is"
            " noise."
        ),
        *(paragraph(why) if again else []),
        *by_arm(users, accuracies, ".1f"),
        "## AUROC on FLamby's split",
        "",
        *by_arm(users, {arm: of for arm, of in aurocs.items() if arm != "majority"}, ".3f"),
    ]


def _users() -> Sequence[str]:
    return load_study(study_path("heart-disease")).hospitals
