"""What collaborating has to beat: tuned models of the user's patients alone, on the same splits.

No round is run. On each split of which-rule and confirmation the user's site fits its local
references, and their losses are compared with those that the cells of these experiments keep of
every rule. The base rate's loss, which both keep, shows that a split is the same.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

import torch

from erosion.simulation.testbed_sites import sites_of_testbed
from erosion_client.training.hospital import Hospital
from erosion_common.protocol.messages import EvaluateRequest
from erosion_common.protocol.scaling import pool
from erosion_common.study.sections import REFERENCES
from erosion_common.study.study import Study
from experiments.cells import Cell, CellPlan, Tick, Values, read_cells
from experiments.experiment import RESULTS, Experiment, Page
from experiments.papers import rules
from experiments.papers.rules import CONFIRMATION, WHICH_RULE, Setting, test_share
from experiments.splits import shipped_study
from experiments.tables import (
    MARKS,
    Difference,
    counted,
    in_words,
    intervals,
    paired_difference,
    paragraph,
    table,
)

SEEDS = 12  # of the fifty that the others have
OURS = {WHICH_RULE: rules.SLOW, CONFIRMATION: rules.RECOMMENDED}
COMPARED = ("local", "fedavg", "personal_intercept", "evidence_erosion")  # and ours
NAMES = (*REFERENCES, *COMPARED, "ours")
TOLERANCE = 1e-9

Losses = Mapping[Setting, Sequence[Mapping[str, float]]]  # of every split, by name


def settings() -> dict[Setting, Experiment]:
    """Return every study and user, and the experiment that has its rules' losses."""
    explored = dict.fromkeys(rules.shipped_settings(), WHICH_RULE)
    return explored | dict.fromkeys(rules.NEW_SETTINGS, CONFIRMATION)


def plans() -> Sequence[CellPlan]:
    """Return a cell for each setting and seed."""
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
    """Return the study that the user's site fits local references for; no arm is run."""
    study = shipped_study(
        config["study"], user=config["user"], seed=config["seed"], arms=["fedavg", "local"]
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


def losses(cell: Cell, other: Cell | None, ours: str) -> dict[str, float] | None:
    """Log losses of the references, and of the rules as another cell of the same split has them.

    None where there is no such cell, or it is of another split, as the base rate's loss shows.
    """
    if other is None or abs(_loss(other, "base rate") - _loss(cell, "base rate")) > TOLERANCE:
        return None
    of_rules = {name: _loss(other, name) for name in COMPARED} | {"ours": _loss(other, ours)}
    return {**of_rules, **{name: _loss(cell, name) for name in REFERENCES}}


def _loss(cell: Cell, name: str) -> float:
    return float(cell.figures[name]["log_loss"])


def by_setting(cells: Mapping[str, Cell], results: Path = RESULTS) -> Losses:
    """Return the losses of every split that both have, for the settings that have two."""
    rules_of = {one: read_cells(results / one.name, one.plans()) for one in OURS}
    found: dict[Setting, list[dict[str, float]]] = {setting: [] for setting in settings()}
    for cell in cells.values():
        setting = cell.plan.config["study"], cell.plan.config["user"]
        experiment = settings()[setting]
        other = rules_of[experiment].get(cell.plan.name)
        if (split := losses(cell, other, OURS[experiment])) is not None:
            found[setting].append(split)
    return {setting: splits for setting, splits in found.items() if len(splits) > 1}


def against(name: str, reference: str, found: Losses) -> dict[Setting, Difference]:
    """Return the loss of one minus that of another, over each setting's splits."""
    return {
        setting: paired_difference(
            [split[name] for split in splits],
            [split[reference] for split in splits],
            comparisons=len(found),
            test_share=test_share(setting[0]),
        )
        for setting, splits in found.items()
    }


def draw(cells: Mapping[str, Cell]) -> Page:
    """Draw the losses, and those of the rules minus the ridge's."""
    found = by_setting(cells)
    left_out = "; ".join(", ".join(setting) for setting in settings() if setting not in found)
    minus = {name: against(name, "ridge", found) for name in NAMES if name != "ridge"}
    means = [
        [
            f"{', '.join(setting)}, {len(each)}",
            *(in_words([split[name] for split in each]) for name in NAMES),
        ]
        for setting, each in found.items()
    ]
    rows = [
        [", ".join(setting), *(column[setting].text() for column in minus.values())]
        for setting in found
    ]
    mean = [f"{fmean(each.mean for each in c.values()):+.3f}" for c in minus.values() if c]
    lines = [
        "# What collaborating has to beat",
        "",
        *paragraph(
            "A ridge regression and boosted trees of the user's training patients alone, tuned by"
            " five folds of these, on the splits of [which rule wins](../which-rule/README.md) and"
            " of the [confirmation](../confirmation/README.md). *Ours* is a slow Weight Erosion"
            " with an output bias of one's own (which rule wins) and the recommended one (the"
            " confirmation). Log loss of the user's test patients; ± is one standard error over"
            " splits, which share patients.",
            f"Left out, because the rules have no such splits yet: {left_out}." if left_out else "",
        ),
        *table(["setting, splits", *NAMES], means),
        "## Minus the ridge",
        "",
        *paragraph(
            "Below 0: better than the ridge.",
            intervals("a column"),
            MARKS,
            counted([apart for column in minus.values() for apart in column.values()]),
        ),
        *table(["", *minus], [*rows, ["mean", *mean]] if rows else []),
    ]
    return Page("\n".join(lines))


EXPERIMENT = Experiment(
    "references",
    "Local references",
    "A tuned ridge regression and boosted trees of the user's patients alone, on the splits of"
    " which-rule and confirmation; their cells are read. Minutes.",
    plans,
    run,
    draw,
    lambda config: (study_of(config),),
)
