"""The shipped survival study beside FLamby's Cox model (du Terrail et al. 2022, Fed-TCGA-BRCA).

The same 63 test patients of the Northeast, the same columns. FLamby's model is Cox's, ours is one
of discrete-time hazards; both are judged by Harrell's C-index, which looks at the order of risks.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from erosion.common.study.study import Study, load_study
from erosion.experiments.cells import Cell, CellPlan, Tick, Values
from erosion.experiments.experiment import Page
from erosion.experiments.papers.rule_page import RECOMMENDED, RECOMMENDED_ARM
from erosion.experiments.splits import one_split
from erosion.experiments.testbed import study_path

SEEDS = 5
STUDY = "tcga-brca"
METRICS = ("harrell_c", "uno_c", "integrated_brier")
ARMS: Mapping[str, Mapping[str, object]] = {  # beside those of the study
    "fedadam": {"algorithm": "fedavg", "server_optimizer": "adam"},
    RECOMMENDED: RECOMMENDED_ARM,
}
# flamby/results/results_benchmark_fed_tcga_brca/tcga_seed42.csv of FLamby's repository,
# client_test_0: Harrell's C-index on the Northeast's test patients, by a Cox model.
PUBLISHED: Mapping[str, float] = {"local": 0.645, "fedavg": 0.757, "fedadam": 0.852}
PUBLISHED_POOLED = 0.802  # trained on all patients in one place


def plans() -> Sequence[CellPlan]:
    """The study with several seeds, which draw the mini-batches."""
    study = load_study(study_path(STUDY))
    arms = {name: arm.model_dump(mode="json") for name, arm in study.arms.items()}
    return [
        CellPlan(f"seed{seed}", {"seed": seed, "arms": {**arms, **ARMS}}, 1)
        for seed in range(SEEDS)
    ]


def run(config: Values, data_dir: Path | None, tick: Tick) -> Values:
    """Every arm's figures on the Northeast's test patients."""
    study = load_study(study_path(STUDY))
    raw = study.model_dump(mode="json") | {"arms": config["arms"], "seed": config["seed"]}
    reply = one_split(Study.model_validate(raw), data_dir)
    tick()
    return {
        arm: {
            "patients": found.num_samples,
            **{name: found[name] for name in METRICS},
            "low": found.intervals["harrell_c"].low,
            "high": found.intervals["harrell_c"].high,
        }
        for arm, found in reply.arms.items()
    }


def draw(cells: Mapping[str, Cell]) -> Page:
    """Ours beside theirs."""
    found = [cell.figures for cell in cells.values()]
    first = found[0]
    rows = []
    for arm, figures in first.items():
        of_seeds = {name: [other[arm][name] for other in found] for name in METRICS}
        c_index = of_seeds["harrell_c"]
        published = f"{PUBLISHED[arm]:.3f}" if arm in PUBLISHED else "–"
        rows.append(
            f"| {arm} | {published} | {fmean(c_index):.3f} | {min(c_index):.3f} to"
            f" {max(c_index):.3f} | {figures['low']:.2f} to {figures['high']:.2f} |"
            f" {fmean(of_seeds['uno_c']):.3f} | {fmean(of_seeds['integrated_brier']):.3f} |"
        )
    patients = next(iter(first.values()))["patients"]
    lines = [
        "# Survival with breast cancer: the Northeast's C-index beside FLamby's",
        "",
        f"Harrell's C-index on the {patients} test patients of the Northeast that FLamby states,",
        f"for our discrete-time model (mean over {len(found)} seeds of the mini-batches) and for",
        "FLamby's Cox model, as its repository has it (seed 42). The interval is a 95 % bootstrap",
        "over the test patients, of the first seed. It is of each method alone: no two were",
        "compared by a test. Uno's C-index and the integrated Brier score (less is better) are",
        "ours.",
        "",
        "| arm | FLamby | ours | over seeds | 95 % interval | Uno's C | integrated Brier |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *rows,
        f"| all patients in one place | {PUBLISHED_POOLED:.3f} | – | – | – | – | – |",
        "",
    ]
    return Page("\n".join(lines))
