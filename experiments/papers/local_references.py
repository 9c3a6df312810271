"""What collaborating has to beat: tuned models of the user's patients alone, on the same splits.

No round is run. On each split of `which_rule` and `confirmation` the user's site fits its local
references, and their losses are set beside those that the cells of these experiments keep of every
rule. That a split is the same one, the base rate's loss says, which is kept by both.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

import torch

from erosion.client.training.hospital import Hospital
from erosion.common.protocol.messages import EvaluateRequest
from erosion.common.protocol.scaling import pool
from erosion.common.study.sections import REFERENCES
from erosion.common.study.study import Study, load_study
from erosion.experiments.cells import Cell, CellPlan, Tick, Values, read_cells
from erosion.experiments.experiment import RESULTS, Page
from erosion.experiments.papers import confirmation, which_rule
from erosion.experiments.papers.paired import (
    INTERVALS,
    LEVEL,
    MARKS,
    Difference,
    paired_difference,
    told,
)
from erosion.experiments.papers.rule_page import RECOMMENDED, Setting
from erosion.experiments.papers.shipped_study import shipped_study
from erosion.experiments.standard_error import in_words
from erosion.experiments.testbed import study_path
from erosion.experiments.testbed_sites import sites_of_testbed

SEEDS = 12  # of the fifty that the others have
OURS = {"which-rule": which_rule.SLOW, "confirmation": RECOMMENDED}
COMPARED = ("local", "fedavg", "personal_intercept", "evidence_erosion")  # and ours
TOLERANCE = 1e-9


def settings() -> dict[Setting, str]:
    """Every study and user, and the experiment that has its rules' losses."""
    explored = dict.fromkeys(which_rule.settings(), "which-rule")
    return explored | dict.fromkeys(confirmation.SETTINGS, "confirmation")


def plans() -> Sequence[CellPlan]:
    """A cell for each setting and seed."""
    return [
        CellPlan(
            f"{study}-{user}-{seed}",
            {"study": study, "user": user, "seed": seed, "references": list(REFERENCES)},
            rounds=1,
        )
        for seed in range(SEEDS)
        for study, user in settings()
    ]


def study_of(config: Values) -> Study:
    """The study whose local references the user's site fits; its first arm is not run."""
    study = shipped_study(
        config["study"],
        user=config["user"],
        seed=config["seed"],
        arms=["fedavg", "local"],
    )
    evaluation = study.evaluation.model_copy(update={"references": tuple(config["references"])})
    return study.model_copy(update={"evaluation": evaluation})


def run(config: Values, data_dir: Path | None, tick: Tick) -> Values:
    """Fit the references on one split, and measure them."""
    study = study_of(config)
    with tempfile.TemporaryDirectory() as made:
        site = sites_of_testbed(study, Path(), Path(made), data_dir, None)[study.user]
        hospital = Hospital(site)
        sums = hospital.describe(study).sums
        layout = study.build_context.layout()
        untrained = torch.zeros(max(place.stop for place in layout.values()))
        request = EvaluateRequest(
            study,
            dict.fromkeys(study.arms, untrained),
            None if sums is None else pool([sums], study.task),
        )
        reply = hospital.evaluate(request).header
    tick()
    assert reply.base_rate is not None
    return {
        name: {metric: found.get(metric) for metric in ("log_loss", "accuracy", "auroc")}
        for name, found in {**reply.references, "base rate": reply.base_rate}.items()
    } | {"patients": reply.base_rate.num_patients}


def losses(cell: Cell, rules: Mapping[str, Cell]) -> dict[str, float] | None:
    """Log losses on a cell's split: of the references, and of the rules as another cell has them.

    `rules`: the cells of the experiment that has them. None where they lack it, or have another
    split, as the base rate's loss shows.
    """
    config = cell.plan.config
    other = rules.get(cell.plan.name)
    if other is None or abs(_loss(other, "base rate") - _loss(cell, "base rate")) > TOLERANCE:
        return None
    ours = OURS[settings()[config["study"], config["user"]]]
    found = {name: _loss(other, name) for name in COMPARED} | {"ours": _loss(other, ours)}
    return {**found, **{name: _loss(cell, name) for name in REFERENCES}}


def _loss(cell: Cell, name: str) -> float:
    return float(cell.figures[name]["log_loss"])


def by_setting(
    cells: Mapping[str, Cell], results: Path = RESULTS
) -> dict[Setting, list[dict[str, float]]]:
    """The losses of every split that both have, for the settings that have two."""
    rules = {
        "which-rule": read_cells(results / "which-rule", which_rule.plans()),
        "confirmation": read_cells(results / "confirmation", confirmation.plans()),
    }
    found: dict[Setting, list[dict[str, float]]] = {setting: [] for setting in settings()}
    for cell in cells.values():
        setting = cell.plan.config["study"], cell.plan.config["user"]
        split = losses(cell, rules[settings()[setting]])
        found[setting] += [split] if split is not None else []
    return {setting: splits for setting, splits in found.items() if len(splits) > 1}


def against(
    name: str, reference: str, found: Mapping[Setting, Sequence[Mapping[str, float]]]
) -> dict[Setting, Difference]:
    """The loss of one minus that of another, over each setting's splits."""
    differences = {}
    for (study, user), splits in found.items():
        differences[study, user] = paired_difference(
            [split[name] for split in splits],
            [split[reference] for split in splits],
            comparisons=len(found),
            test_share=load_study(study_path(study)).evaluation.test_share,
        )
    return differences


def draw(cells: Mapping[str, Cell]) -> Page:
    """The losses, and those of the rules minus the ridge's."""
    found = by_setting(cells)
    names = [*REFERENCES, *COMPARED, "ours"]
    left_out = "; ".join(", ".join(setting) for setting in settings() if setting not in found)
    minus = {name: against(name, "ridge", found) for name in names if name != "ridge"}
    lines = [
        "# What collaborating has to beat",
        "",
        "A ridge regression and boosted trees of the user's training patients alone, tuned by five",
        "folds of these, on the splits of [which rule wins](../which-rule/README.md) and of the",
        "[confirmation](../confirmation/README.md). *Ours* is a slow Weight Erosion with an output",
        "bias of one's own (which rule wins) and the recommended one (the confirmation). Log loss",
        "of the user's test patients; ± is one standard error over splits, which share patients.",
        *(
            [f"Left out, because the rules have no such splits yet: {left_out}."]
            if left_out
            else []
        ),
        "",
        f"| setting, splits | {' | '.join(names)} |",
        f"| --- |{' --- |' * len(names)}",
        *(
            f"| {', '.join(setting)}, {len(each)} |"
            f" {' | '.join(in_words([split[name] for split in each]) for name in names)} |"
            for setting, each in found.items()
        ),
        "",
        "## Minus the ridge",
        "",
        f"Below 0: better than the ridge. {INTERVALS}, {100 * (1 - LEVEL):g} % for a column.",
        *MARKS,
        told([apart for column in minus.values() for apart in column.values()]),
        "",
        f"| | {' | '.join(minus)} |",
        f"| --- |{' --- |' * len(minus)}",
        *(
            f"| {', '.join(setting)} |"
            f" {' | '.join(column[setting].text() for column in minus.values())} |"
            for setting in found
        ),
        f"| mean | {' | '.join(_mean(column) for column in minus.values())} |",
        "",
    ]
    return Page("\n".join(lines))


def _mean(column: Mapping[Setting, Difference]) -> str:
    return f"{fmean(apart.mean for apart in column.values()):+.3f}" if column else "–"
