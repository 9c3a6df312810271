"""Two questions to the shipped studies over splits: is one round enough, and do local steps matter?

one-round: the user alone, FedAvg, Weight Erosion and evidence erosion in all of the study's rounds,
    personal GEMS and GEMS in one round of as much local training.
local-steps: averaged gradients and bias correction (what Chayti et al. 2021 left out), Weight
    Erosion by its paper's setting and the recommended one, and training alone, with 1, 5 or 20
    local steps a round and as many in all.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from erosion.simulation.testbed import study_path
from erosion_common.algorithms.weight_erosion import PRESETS
from erosion_common.study.study import Study, load_study
from experiments.cells import Cell, CellPlan, Values, planned
from experiments.experiment import experiment
from experiments.page import Page, grid, joined, named, page, table, where
from experiments.papers.rules import RECOMMENDED, RECOMMENDED_ARM, Arms, test_share
from experiments.splits import measured, one_split, shipped_study
from experiments.tables import (
    MARKS,
    errors_of,
    figures_of,
    in_words,
    intervals,
    one_or_range,
    paired_difference,
)

SEEDS = 20
STUDIES = {
    "breast-cancer": "Breast cancer, five hospitals, one of them miscoded",
    "heart-disease": "Heart disease, four real hospitals",
}
ONE_ROUND = ("personal_gems", "tuned_personal_gems", "ball_personal_gems", "gems")
REFERENCE = "personal_gems"
STEPS = (1, 5, 20)
STEPS_IN_ALL: Mapping[str, int] = {"breast-cancer": 100, "heart-disease": 200}
STEP_ARMS: Arms = {
    "local": {},
    "weighted_gradient": {},
    "bias_correction": {},
    "weight_erosion": PRESETS["paper"],
    RECOMMENDED: RECOMMENDED_ARM,
}


def arms(rounds: int) -> dict[str, dict[str, Any]]:
    """Return what is compared; those of one round train as long in it as the others in all."""
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


def _rounds(name: str) -> int:
    return load_study(study_path(name)).rounds


def round_plans() -> list[CellPlan]:
    """Return a cell for each study and seed."""
    points = (
        {"study": name, "seed": seed, "arms": arms(_rounds(name))}
        for name in STUDIES
        for seed in range(SEEDS)
    )
    return planned("{study}-{seed}", points, version=2)


def step_plans() -> list[CellPlan]:
    """Return a cell for each seed, study and number of steps."""
    points = (
        {"study": study, "steps": steps, "rounds": total // steps, "seed": seed}
        for seed in range(SEEDS)
        for study, total in STEPS_IN_ALL.items()
        for steps in STEPS
    )
    return planned("{study}-{steps}steps-{seed}", points, arms=STEP_ARMS, version=1)


def study_of(config: Values) -> Study:
    """Return the shipped study with the cell's arms, seed, rounds and steps."""
    changed = {key: config[key] for key in ("arms", "seed", "rounds") if key in config}
    if "steps" in config:
        training = load_study(study_path(config["study"])).training.model_dump(mode="json")
        changed["training"] = training | {"steps": config["steps"]}
    return shipped_study(config["study"], **changed)


def run_rounds(config: Values, data_dir: Path | None) -> Values:
    """Simulate one split."""
    reply = one_split(study_of(config), data_dir)
    return {
        arm: {**found, "patients": reply.arms[arm].num_patients}
        for arm, found in measured(reply.arms, ("log_loss", "accuracy")).items()
    }


def run_steps(config: Values, data_dir: Path | None) -> Values:
    """Run all arms on one split."""
    reply = one_split(study_of(config), data_dir, min_local_steps=config["steps"])
    patients = reply.arms["local"].num_patients
    return {**measured(reply.arms, ("log_loss", "accuracy")), "patients": patients}


def _figures(cells: Mapping[str, Cell], **settings: Any) -> list[Values]:
    return [cell.figures for cell in where(cells, **settings)]


def draw_rounds(cells: Mapping[str, Cell]) -> Page:
    """Draw one table for each study."""
    found = {name: _figures(cells, study=name) for name in STUDIES}
    return page(
        "one-round",
        intervals=intervals("all of a table"),
        tables={
            title: joined(_round_table(found[name], _rounds(name)))
            for name, title in STUDIES.items()
            if len(found[name]) > 1
        },
    )


def _round_table(found: Sequence[Values], rounds: int) -> list[str]:
    rows = []
    ours = figures_of(found, REFERENCE, "log_loss")
    for arm in arms(rounds):
        losses = figures_of(found, arm, "log_loss")
        errors = errors_of([{**one, "patients": one[arm]["patients"]} for one in found], arm)
        apart = paired_difference(losses, ours, comparisons=len(arms(rounds)) - 1)
        minus = "" if arm == REFERENCE else apart.text()
        how_many = "one round" if arm in ONE_ROUND else f"{rounds} rounds"
        rows.append([arm, how_many, in_words(losses), in_words(errors, ".1f"), minus])
    patients = one_or_range(one[REFERENCE]["patients"] for one in found)
    head = ["arm", "exchanges", "log loss", "errors", "log loss against personal GEMS"]
    return [f"{len(found)} splits, {patients} test patients each.", table(head, rows)]


def draw_steps(cells: Mapping[str, Cell]) -> Page:
    """Draw one table for each study: log loss by steps a round, and training alone."""
    return page(
        "local-steps",
        intervals=intervals("all of a table"),
        marks=MARKS,
        tables=joined(
            _step_table(study, total, {n: _figures(cells, study=study, steps=n) for n in STEPS})
            for study, total in STEPS_IN_ALL.items()
        ),
    )


def _step_table(study: str, total: int, found: Mapping[int, Sequence[Values]]) -> str:
    if min(map(len, found.values())) < 2:
        return ""

    def entry(arm: str, figures: Sequence[Values]) -> str:
        ours, alone = (figures_of(figures, name, "log_loss") for name in (arm, "local"))
        apart = paired_difference(
            ours,
            alone,
            comparisons=(len(STEP_ARMS) - 1) * len(STEPS),
            test_share=test_share((study, "")),
        )
        return in_words(ours) + ("" if arm == "local" else f"<br>{apart.text()}")

    patients = one_or_range(one["patients"] for of in found.values() for one in of)
    columns = {f"{steps} ({len(of)} splits)": of for steps, of in found.items()}
    return joined(
        [
            f"## {study}",
            f"{patients} test patients, {total} local steps in all.",
            grid("steps a round", named(STEP_ARMS), columns, entry),
        ]
    )


ONE_ROUND_EXPERIMENT = experiment(
    "one-round",
    round_plans,
    run_rounds,
    draw_rounds,
    study_of,
)
LOCAL_STEPS = experiment(
    "local-steps",
    step_plans,
    run_steps,
    draw_steps,
    study_of,
)
