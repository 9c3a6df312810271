"""The experiment that sets rules beside tuned models of the user alone."""

from pathlib import Path

from erosion.experiments.cells import Cell, CellPlan
from erosion.experiments.papers import which_rule
from erosion.experiments.papers.local_references import COMPARED, losses, plans, run

LOSSES = {name: {"log_loss": 0.4} for name in (*COMPARED, which_rule.SLOW, "base rate")}
REFERENCES = {"ridge": {"log_loss": 0.3}, "boosted_trees": {"log_loss": 0.5}}


def cell(plan: CellPlan, **figures: object) -> Cell:
    return Cell(plan, figures, "c0ffee", "command", 1.0)


def test_a_rule_is_set_beside_a_reference_on_the_same_split_alone() -> None:
    plan = next(iter(plans()))
    ours = cell(plan, **REFERENCES, **{"base rate": {"log_loss": 0.4}})
    found = losses(ours, {plan.name: cell(plan, **LOSSES)})
    assert found is not None
    assert (found["ridge"], found["ours"], found["boosted_trees"]) == (0.3, 0.4, 0.5)
    another = {**LOSSES, "base rate": {"log_loss": 0.41}}
    assert losses(ours, {plan.name: cell(plan, **another)}) is None
    assert losses(ours, {}) is None


def test_references_are_fitted_without_a_round(tmp_path: Path) -> None:
    ticks = []
    plan = next(iter(plans()))
    assert plan.config["study"] == "breast-cancer"
    figures = run(plan.config, tmp_path, lambda: ticks.append(1))
    assert figures["patients"] == 104
    assert figures["ridge"]["log_loss"] < figures["base rate"]["log_loss"]
    assert ticks == [1]
