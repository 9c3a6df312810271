"""Fed-TCGA-BRCA (du Terrail et al., FLamby, 2022): survival with each of six regions as the user.

FLamby's split of the patients and others with as many test patients in each region. The number of
rounds of every arm is chosen on a third of the user's training patients; everything else is as the
shipped study has it. `pooled` is what nobody may do: one model trained on all patients in one
place. FLamby's model is Cox's, ours is one of discrete-time hazards.
"""

import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from erosion.simulation.testbed import study_path
from erosion.sources import Data, make_hospitals
from erosion.sources.flamby import DAYS, EVENT, TEST_SHARE
from erosion_common.study.study import Study, load_study
from experiments.cells import Cell, CellPlan, Values, planned
from experiments.experiment import experiment
from experiments.page import Page, constants, page
from experiments.papers import flamby
from experiments.papers.rules import Arms
from experiments.splits import measured

STUDY = "tcga-brca"
FLAMBYS = 0  # the split that FLamby's file states; from 1 on they are drawn
SPLITS = range(101)
METRICS = ("harrell_c", "uno_c", "integrated_brier")
KAPLAN_MEIER = "kaplan_meier"
ARMS: Arms = {**flamby.ARMS, "fedadam": {"algorithm": "fedavg", "server_optimizer": "adam"}}
ROWS = (KAPLAN_MEIER, flamby.POOLED, *ARMS)
OTHER_SPLITS = flamby.OtherSplits(
    rows=ROWS,
    columns={
        "Harrell's C": "harrell_c",
        "Uno's C": "uno_c",
        "integrated Brier score": "integrated_brier",
    },
    compared={"harrell_c": "C-index", "integrated_brier": "integrated Brier"},
    lower_is_better=("integrated_brier",),
    test_share=TEST_SHARE,
)
PUBLISHED: Mapping[str, Sequence[float | None]] = constants("published")["fed-tcga"]


def plans() -> list[CellPlan]:
    """Return a cell for each split and user, FLamby's split first."""
    return [
        plan
        for split in SPLITS
        for plan in planned(
            "{user}-flamby" if split == FLAMBYS else "{user}-split{split}",
            ({"user": user, "split": split} for user in _users()),
            arms=ARMS,
            folds=flamby.FOLDS,
            version=1,
        )
    ]


def study_of(config: Values) -> Study:
    """Return the shipped study for the cell's user and split."""
    flambys = config["split"] == FLAMBYS
    return flamby.study_for(
        STUDY,
        config,
        split_seed=None if flambys else config["split"],
        bootstrap=1000 if flambys else 100,
    )


def run(config: Values, data_dir: Path | None) -> Values:
    """Run all arms of one user on one split; of FLamby's also an interval."""
    study, flambys = study_of(config), config["split"] == FLAMBYS
    with tempfile.TemporaryDirectory() as folder:
        files = make_hospitals(study, Path(folder), data_dir)
        found = flamby.arms_and_pooled(study, files, KAPLAN_MEIER)
        days, died = _tested(files[config["user"]])
    figures: dict[str, object] = {
        **measured(found, METRICS),
        "patients": found[KAPLAN_MEIER].num_patients,
        "deaths": int(died.sum()),
        "pairs": comparable_pairs(days, died),
    }
    if flambys and "harrell_c" in found["local"].intervals:
        interval = found["local"].intervals["harrell_c"]
        figures["local_c_index"] = [interval.low, interval.high]
    return figures


def _tested(file: Data) -> tuple[np.ndarray, np.ndarray]:
    """Of the test patients: days followed (n,), and whether that ended with death (n,)."""
    header, patients = flamby.read_table(file)
    split, days, event = (header.index(name) for name in (flamby.SPLIT, DAYS, EVENT))
    tested = [cells for cells in patients if cells[split] == "test"]
    return (
        np.array([float(cells[days]) for cells in tested]),
        np.array([float(cells[event]) == 1 for cells in tested]),
    )


def comparable_pairs(days: np.ndarray, died: np.ndarray) -> int:
    """Pairs that the C-index counts: of one it is known to have died before the other.

    Who was followed to the very day of the other's death, and lived, outlived the other.
    """
    longer = days[None, :] > days[:, None]  # [i, j]: j was followed for longer than i
    as_long = (days[None, :] == days[:, None]) & ~died[None, :]
    return int(((longer | as_long) & died[:, None]).sum())


def draw(cells: Mapping[str, Cell]) -> Page:
    """Draw FLamby's split with its figures; ours against others; the other splits."""
    users, by_split = _users(), flamby.by_user(cells, _users())
    found = {user: of[FLAMBYS] for user, of in by_split.items() if FLAMBYS in of}
    others = {
        user: [figures for split, figures in of.items() if split != FLAMBYS]
        for user, of in by_split.items()
    }
    counts = ", ".join(
        f"{user} {of['patients']} ({of['deaths']}, {of['pairs']})" for user, of in found.items()
    )
    intervals = ", ".join(
        f"{user} {of['local_c_index'][0]:.2f} to {of['local_c_index'][1]:.2f}"
        for user, of in found.items()
        if "local_c_index" in of
    )
    c_indices = {**PUBLISHED, **flamby.of_arms(found, users, ROWS[1:], "harrell_c")}
    return page(
        "fed-tcga",
        counts=counts,
        intervals=intervals,
        c_indices=flamby.by_arm(users, c_indices, ".3f"),
        brier_scores=flamby.by_arm(
            users, flamby.of_arms(found, users, ROWS, "integrated_brier"), ".3f"
        ),
        **OTHER_SPLITS.draw(others),
    )


@cache
def _users() -> Sequence[str]:
    return load_study(study_path(STUDY)).hospitals


EXPERIMENT = experiment(
    "fed-tcga",
    plans,
    run,
    draw,
    study_of,
)
