"""Is one round enough? Personal GEMS beside methods of many rounds, over splits of the patients.

The shipped studies with other arms: the user alone, FedAvg, Weight Erosion and evidence erosion in
all of the study's rounds, personal GEMS and GEMS in one round of as much local training. The seed
decides training, test patients, and (breast cancer) which patient is at which hospital.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from erosion.common.study.study import Study, load_study
from erosion.experiments.cells import Cell, CellPlan, Tick, Values
from erosion.experiments.experiment import Page
from erosion.experiments.papers.paired import INTERVALS, LEVEL, one_or_range, paired_difference
from erosion.experiments.papers.shipped_study import shipped_study
from erosion.experiments.splits import one_split
from erosion.experiments.standard_error import in_words
from erosion.experiments.testbed import study_path

SEEDS = 20
STUDIES = {
    "breast-cancer": "Breast cancer, five hospitals, one of them miscoded",
    "heart-disease": "Heart disease, four real hospitals",
}
ONE_ROUND = ("personal_gems", "tuned_personal_gems", "ball_personal_gems", "gems")
REFERENCE = "personal_gems"


def plans() -> Sequence[CellPlan]:
    """A cell for each study and seed."""
    return [
        CellPlan(
            f"{name}-{seed}",
            {"study": name, "seed": seed, "arms": arms(_rounds(name)), "version": 2},
            rounds=1,
        )
        for name in STUDIES
        for seed in range(SEEDS)
    ]


def arms(rounds: int) -> dict[str, dict[str, Any]]:
    """What is compared; those of one round train as long in it as the others in all."""
    once = {"algorithm": "personal_gems", "local_rounds": rounds}
    share = {"epsilon": 0.9, "epsilon_of": "own_accuracy"}
    return {
        "local": {},
        "fedavg": {},
        "weight_erosion": {},
        "evidence_erosion": {},
        "personal_gems": once,
        "tuned_personal_gems": {**once, "tuning_rounds": 5},
        "ball_personal_gems": {**once, **share, "balls": "user"},
        "gems": {**once, **share, "algorithm": "gems"},
    }


def study_of(config: Values) -> Study:
    """The shipped study with the cell's arms and seed."""
    return shipped_study(config["study"], arms=config["arms"], seed=config["seed"])


def run(config: Values, data_dir: Path | None, tick: Tick) -> Values:
    """Simulate one split."""
    reply = one_split(study_of(config), data_dir)
    tick()
    return {
        arm: {"log_loss": m["log_loss"], "accuracy": m["accuracy"], "patients": m.num_patients}
        for arm, m in reply.arms.items()
    }


def draw(cells: Mapping[str, Cell]) -> Page:
    """One table for each study."""
    lines = [
        "# Is one round enough? Personal GEMS over splits of the patients",
        "",
        "Every arm trains as many local steps in all; those marked *one round* exchange once, the",
        "others in every round of the study. Mean over the splits, which share patients, so that",
        "the errors (±, one standard error) are about splits alone. The last column is the log",
        "loss minus that of personal GEMS in the same split: above 0, personal GEMS is better.",
        f"{INTERVALS}, {100 * (1 - LEVEL):g} % for all of a table together; \\*: leaves out 0. How",
        "many errors it is to name the commonest class stands in",
        "[which rule wins](../which-rule/README.md).",
        "",
    ]
    for name, title in STUDIES.items():
        found = [cell.figures for cell in cells.values() if cell.plan.config["study"] == name]
        if len(found) > 1:
            lines += _table(title, found, _rounds(name))
    return Page("\n".join(lines))


def _table(title: str, found: Sequence[Values], rounds: int) -> list[str]:
    rows = []
    for arm in arms(rounds):
        losses = [figures[arm]["log_loss"] for figures in found]
        errors = [(1 - figures[arm]["accuracy"]) * figures[arm]["patients"] for figures in found]
        ours = [figures[REFERENCE]["log_loss"] for figures in found]
        apart = paired_difference(losses, ours, comparisons=len(arms(rounds)) - 1)
        how_many = "one round" if arm in ONE_ROUND else f"{rounds} rounds"
        beside = "" if arm == REFERENCE else apart.text()
        rows.append(
            f"| {arm} | {how_many} | {in_words(losses)} | {in_words(errors, '.1f')} | {beside} |"
        )
    patients = one_or_range(figures[REFERENCE]["patients"] for figures in found)
    return [
        f"## {title}",
        "",
        f"{len(found)} splits, {patients} test patients each.",
        "",
        "| arm | exchanges | log loss | errors | log loss beside personal GEMS |",
        "| --- | --- | --- | --- | --- |",
        *rows,
        "",
    ]


def _rounds(name: str) -> int:
    return load_study(study_path(name)).rounds
