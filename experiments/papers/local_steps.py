"""Bias correction on real data with local steps (what Chayti et al. 2021 left out).

Beside it weighted gradient averaging, Weight Erosion by its paper's setting and by the recommended
one, and training alone. Hospitals take 1, 5 or 20 steps a round; rounds are as many as leave each
arm the same number of steps in all.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from erosion.common.algorithms.weight_erosion import PRESETS
from erosion.common.study.study import Study, load_study
from erosion.experiments.cells import Cell, CellPlan, Tick, Values
from erosion.experiments.experiment import Page
from erosion.experiments.papers.paired import (
    INTERVALS,
    LEVEL,
    MARKS,
    one_or_range,
    paired_difference,
)
from erosion.experiments.papers.rule_page import RECOMMENDED, RECOMMENDED_ARM, Arms
from erosion.experiments.papers.shipped_study import shipped_study
from erosion.experiments.splits import one_split
from erosion.experiments.standard_error import in_words
from erosion.experiments.testbed import study_path

SEEDS = 20
STEPS = (1, 5, 20)
STUDIES: Mapping[str, int] = {"breast-cancer": 100, "heart-disease": 200}  # local steps in all
REFERENCE = "local"
ARMS: Arms = {
    "local": {},
    "weighted_gradient": {},
    "bias_correction": {},
    "weight_erosion": PRESETS["paper"],
    RECOMMENDED: RECOMMENDED_ARM,
}


def plans() -> Sequence[CellPlan]:
    """A cell for each seed, study and number of steps."""
    return [
        CellPlan(
            f"{study}-{steps}steps-{seed}",
            {
                "study": study,
                "steps": steps,
                "rounds": total // steps,
                "seed": seed,
                "arms": dict(ARMS),
                "version": 1,
            },
            rounds=1,
        )
        for seed in range(SEEDS)
        for study, total in STUDIES.items()
        for steps in STEPS
    ]


def study_of(config: Values) -> Study:
    """The shipped study with the cell's arms, seed, rounds and steps a round."""
    training = load_study(study_path(config["study"])).training.model_dump(mode="json")
    return shipped_study(
        config["study"],
        arms=config["arms"],
        seed=config["seed"],
        rounds=config["rounds"],
        training=training | {"steps": config["steps"]},
    )


def run(config: Values, data_dir: Path | None, tick: Tick) -> Values:
    """All arms on one split."""
    reply = one_split(study_of(config), data_dir, min_local_steps=config["steps"])
    tick()
    return {
        arm: {"log_loss": found["log_loss"], "accuracy": found["accuracy"]}
        for arm, found in reply.arms.items()
    } | {"patients": reply.arms[REFERENCE].num_patients}


def draw(cells: Mapping[str, Cell]) -> Page:
    """One table for each study: log loss by steps a round, and beside training alone."""
    lines = [
        "# Bias correction with local steps, on real data",
        "",
        "Log loss of the user's test patients, with as many local steps in all however many a",
        "round; ± is one standard error over splits, which share patients. Below it the difference",
        "from training alone in the same split with its interval; below 0 is better.",
        f"{INTERVALS}, {100 * (1 - LEVEL):g} % for all of a table together.",
        *MARKS,
        "",
    ]
    for study, total in STUDIES.items():
        by_steps = {steps: _figures(cells, study, steps) for steps in STEPS}
        if min(map(len, by_steps.values())) > 1:
            lines += _table(study, total, by_steps)
    return Page("\n".join(lines))


def _figures(cells: Mapping[str, Cell], study: str, steps: int) -> list[Values]:
    return [
        cell.figures
        for cell in cells.values()
        if (cell.plan.config["study"], cell.plan.config["steps"]) == (study, steps)
    ]


def _table(study: str, total: int, found: Mapping[int, Sequence[Values]]) -> list[str]:
    comparisons = (len(ARMS) - 1) * len(STEPS)
    share = load_study(study_path(study)).evaluation.test_share
    rows = []
    for arm in ARMS:
        cells = []
        for figures in found.values():
            ours, alone = ([one[name]["log_loss"] for one in figures] for name in (arm, REFERENCE))
            text = in_words(ours)
            if arm != REFERENCE:
                apart = paired_difference(ours, alone, comparisons=comparisons, test_share=share)
                text += f"<br>{apart.text()}"
            cells.append(text)
        rows.append(f"| {arm} | {' | '.join(cells)} |")
    columns = [f"{steps} ({len(figures)} splits)" for steps, figures in found.items()]
    patients = one_or_range(one["patients"] for figures in found.values() for one in figures)
    return [
        f"## {study}",
        "",
        f"{patients} test patients, {total} local steps in all.",
        "",
        f"| steps a round | {' | '.join(columns)} |",
        f"| --- |{' --- |' * len(found)}",
        *rows,
        "",
    ]
