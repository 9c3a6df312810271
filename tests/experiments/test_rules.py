"""The experiments that compare rules over splits: their studies, a cell, and pages of few cells."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from erosion_common.algorithms import REGISTRY
from erosion_common.study.study import Study
from experiments.cells import Cell, CellPlan
from experiments.experiment import Experiment
from experiments.papers import leaderboard, references, rules, split_studies, tuned_rules
from experiments.papers.rules import CONFIRMED, EXPLORED, SHARES, SLOW


def cell(plan: CellPlan, **figures: Any) -> Cell:
    return Cell(plan, figures, "c0ffee", "command", 1.0)


def ascending(arms: Sequence[str], step: float) -> dict[str, Any]:
    """Losses from .5 on, a step for each arm."""
    return {
        arm: {"log_loss": 0.5 + step * place, "accuracy": 0.9, "auroc": 0.8}
        for place, arm in enumerate(arms)
    }


@pytest.mark.parametrize("arms", [EXPLORED, CONFIRMED, tuned_rules.ARMS])
def test_no_rule_that_averages_is_left_out(arms: Mapping[str, Mapping[str, Any]]) -> None:
    networks = [own for _, own in rules.NETWORKS.values()]
    compared = {
        settings.get("algorithm", name)
        for given in (arms, rules.LATER, *networks)
        for name, settings in given.items()
    }
    # One round, one hospital's model, or no local training.
    apart = {"krum", "gems", "network_gems", "newton", "personal_gems"}
    assert set(REGISTRY) - apart == compared


def of_breast_cancer(experiment: Experiment, seeds: int) -> list[CellPlan]:
    return [
        plan
        for plan in experiment.plans()
        if plan.config["study"] == "breast-cancer" and plan.config["seed"] < seeds
        if "part" not in plan.config
    ]


def test_the_page_ranks_the_arms_and_marks_what_differs() -> None:
    figures = ascending([*EXPLORED, "base rate"], 0.01)
    found = of_breast_cancer(rules.WHICH_RULE, 20)
    cells = {plan.name: cell(plan, **figures, patients=50) for plan in found}
    text = rules.WHICH_RULE.draw(cells).text
    assert "| local | 1.0 | 0.000 |" in text
    assert f"| fedavg | 2.0 | {0.01:.3f} |" in text
    assert "| fedavg | 0.510 ± 0.000 | +0.010 ± 0.000 \\* | 5.0 ± 0.0 | 0.800 ± 0.000 |" in text
    last = cells.popitem()[1]
    cells["other"] = replace(last, figures={**last.figures, "patients": 51})
    assert "20 splits, 50 to 51 test patients each" in rules.WHICH_RULE.draw(cells).text


def test_what_is_lost_to_the_best_share_is_averaged_over_the_settings() -> None:
    cells = {
        plan.name: cell(
            plan, **ascending(list(SHARES), 0.1 * (plan.config["study"] == "breast-cancer"))
        )
        for plan in rules.SLOW_EROSION.plans()
    }
    text = rules.SLOW_EROSION.draw(cells).text
    # the second share loses .1 in one of five settings
    assert "| share-200 | 0.600 ± 0.000 | 0.500 ± 0.000 |" in text
    assert "| 0.0200 | 0.1000 |" in text


def test_every_candidate_is_a_valid_setting() -> None:
    plans = reversed(tuned_rules.plans())
    first = {(plan.config["study"], plan.config["user"]): plan for plan in plans}
    assert len(first) == 5 + len(tuned_rules.TITANIC_USERS)
    for plan in first.values():
        study = tuned_rules.study_of(plan.config)
        for arm, tried in tuned_rules.CANDIDATES.items():
            for settings in tried:
                changed = {arm: study.settings_of(arm, changed=settings)}
                Study.model_validate({**study.model_dump(), "arms": changed, "selection": None})


def test_a_cell_says_what_every_rule_chose(tmp_path: Path) -> None:
    config = {
        **tuned_rules.plans()[0].config,
        "arms": {"local": {}, "fedavg": {}},
        "candidates": {"fedavg": [{"weighting": "samples"}, {"weighting": "uniform"}]},
    }
    found = tuned_rules.run(config, tmp_path)
    assert found["local"]["settings"] == {}
    assert found["fedavg"]["settings"]["weighting"] in {"samples", "uniform"}
    assert 1 <= found["fedavg"]["rounds"] <= tuned_rules.study_of(config).rounds
    assert found["patients"] == 104


def test_a_rule_is_set_beside_a_reference_on_the_same_split_alone() -> None:
    plan = references.plans()[0]
    of_rules = {name: {"log_loss": 0.4} for name in (*references.COMPARED, SLOW, "base rate")}
    tuned = {"ridge": {"log_loss": 0.3}, "boosted_trees": {"log_loss": 0.5}}
    ours = cell(plan, **tuned, **{"base rate": {"log_loss": 0.4}})
    found = references.with_rules(ours, cell(plan, **of_rules), SLOW)
    assert found is not None
    losses = [found[name]["log_loss"] for name in ("ridge", "ours", "boosted_trees")]
    assert losses == [0.3, 0.4, 0.5]
    another = {**of_rules, "base rate": {"log_loss": 0.41}}
    assert references.with_rules(ours, cell(plan, **another), SLOW) is None
    assert references.with_rules(ours, None, SLOW) is None


def test_references_are_fitted_without_a_round(tmp_path: Path) -> None:
    plan = references.plans()[0]
    assert plan.config["study"] == "breast-cancer"
    figures = references.run(plan.config, tmp_path)
    assert figures["patients"] == 104
    assert figures["ridge"]["log_loss"] < figures["base rate"]["log_loss"]


def test_one_split_measures_every_arm_on_the_same_patients() -> None:
    plan = split_studies.round_plans()[0]
    few = {arm: plan.config["arms"][arm] for arm in ("local", "personal_gems", "gems")}
    figures = split_studies.run_rounds({**plan.config, "arms": few}, None)
    assert set(figures) == set(few)
    assert {metrics["patients"] for metrics in figures.values()} == {104}
    assert figures["personal_gems"]["log_loss"] < figures["local"]["log_loss"]


def test_the_difference_from_one_round_is_taken_within_a_split() -> None:
    cells = {}
    for seed, reference in enumerate((0.25, 0.75)):
        metrics = {"accuracy": 0.9, "patients": 100}
        figures = {
            arm: {**metrics, "log_loss": reference + 0.125} for arm in split_studies.arms(30)
        }
        figures[split_studies.REFERENCE]["log_loss"] = reference
        cells[str(seed)] = cell(split_studies.round_plans()[seed], **figures)
    text = split_studies.draw_rounds(cells).text
    assert "| personal_gems | one round | 0.500 ± 0.250 | 10.0 ± 0.0 |  |" in text
    local = "| local | 30 rounds | 0.625 ± 0.250 | 10.0 ± 0.0 | +0.125 (+0.125 to +0.125) |"
    assert local in text


def losses_of(**arms: float) -> dict[str, Any]:
    return {arm.replace("_", " "): {"log_loss": loss} for arm, loss in arms.items()}


def test_the_leaderboard_ranks_over_splits_that_have_every_method() -> None:
    one, other = ("breast-cancer", "home"), ("breast-cancer", "miscoded")
    found = {
        one: {0: losses_of(local=0.5, new=0.4), 1: losses_of(local=0.1)},
        other: {0: losses_of(local=0.5, new=0.7, rare=0.0)},
    }
    assert leaderboard.compared(found) == (["local", "new"], ["rare"])
    rows, common = leaderboard.ranked(found, ["local", "new"])
    assert common == {one: 1, other: 1}
    assert rows[0][:2] == ("local", 1.5)
    _, rank, mean, where, worst = rows[1]
    assert (rank, where) == (1.5, ", ".join(other))
    assert (mean, worst) == pytest.approx((0.05, 0.2))


def test_a_cell_of_other_patients_is_not_merged() -> None:
    known = losses_of(local=0.5, base_rate=0.6)
    later = {**losses_of(base_rate=0.6), "weight_erosion_finish": {"log_loss": 0.3}, "slope": 1.0}
    both = leaderboard.merged(known, later)
    assert both["weight_erosion_recommended_finish"] == {"log_loss": 0.3}
    assert set(both) == {*known, "weight_erosion_recommended_finish"}
    assert leaderboard.merged(known, losses_of(base_rate=0.61, new=0.1)) == known
    assert leaderboard.merged(known, losses_of(base_rate=0.6, local=0.51, new=0.1)) == known
    assert leaderboard.merged({}, known) == known


def test_the_leaderboard_is_the_cells() -> None:
    assert Path("docs/leaderboard.md").read_text() == leaderboard.draw().text
