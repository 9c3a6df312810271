"""The cells of the verdict: made-up predictions, and whole studies."""

from collections.abc import Sequence
from pathlib import Path

from experiments.cells import CellPlan, Values
from experiments.papers import verdict_refits, verdict_simulated
from experiments.papers.verdict_refits import POPULATIONS, population
from experiments.papers.verdict_simulated import KINDS, NULLS, RULES, claims_of

TEST_PATIENTS = (16, 30, 50, 60, 100, 104, 200, 300)
SIMULATED = 2000  # studies of a cell
PATIENTS = (40, 80, 160, 320)  # of the user's
SCENARIOS = ("alike", "wrong")  # the others' patients
REFITTED = 100  # studies of a cell
SEEDS = range(3)  # of cells that are pooled


def plans() -> Sequence[CellPlan]:
    """Return every kind of made-up predictions, then every data set."""
    simulated = [
        CellPlan(
            f"simulated-{kind.replace(' ', '-')}-{patients}",
            {"kind": kind, "patients": patients, "studies": SIMULATED, "seed": 0, "version": 1},
        )
        for kind in (*NULLS, *(kind for kind in KINDS if kind not in NULLS))
        for patients in TEST_PATIENTS
    ]
    refitted = [
        CellPlan(
            f"{name}-{scenario}-{patients}" + (f"-{seed}" if seed else ""),
            {
                "data": name,
                "scenario": scenario,
                "patients": patients,
                "studies": REFITTED,
                "seed": seed,
                "version": 2,
            },
        )
        for seed in SEEDS
        for name in POPULATIONS
        for scenario in SCENARIOS
        for patients in PATIENTS
    ]
    return [*simulated, *refitted]


def run(config: Values, data_dir: Path | None) -> Values:
    """Return how many claims each rule makes, or what each study measured."""
    patients, studies, seed = config["patients"], config["studies"], config["seed"]
    if "kind" in config:
        drawn = verdict_simulated.draw(config["kind"], studies, patients, seed)
        claims = {rule: claims_of(rule, drawn) for rule in RULES}
        figures: Values = {
            rule: {"first": int((found < 0).sum()), "second": int((found > 0).sum())}
            for rule, found in claims.items()
        }
    else:
        figures = verdict_refits.measure(
            population(config["data"], data_dir),
            patients,
            config["scenario"],
            studies=studies,
            seed=seed,
        )
    return figures
