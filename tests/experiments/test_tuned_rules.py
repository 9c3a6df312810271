"""The comparison of rules whose settings are chosen: what each may choose from, and the page."""

from pathlib import Path
from typing import Any

from erosion.common.algorithms import REGISTRY
from erosion.common.study.study import Study
from erosion.experiments.cells import Cell, CellPlan
from erosion.experiments.papers.tuned_rules import (
    ARMS,
    CANDIDATES,
    TITANIC_USERS,
    draw,
    plans,
    run,
    study_of,
)


def test_every_setting_takes_every_arm_and_every_candidate() -> None:
    first = {(plan.config["study"], plan.config["user"]): plan for plan in reversed(plans())}
    assert len(first) == 5 + len(TITANIC_USERS)
    for plan in first.values():
        study = study_of(plan.config)
        assert study.selection is not None
        assert list(study.arms) == list(ARMS)
        for arm, tried in CANDIDATES.items():
            for settings in tried:
                changed = {arm: study.settings_of(arm, changed=settings)}
                Study.model_validate({**study.model_dump(), "arms": changed, "selection": None})


def test_no_rule_that_averages_is_left_out() -> None:
    compared = {settings.get("algorithm", name) for name, settings in ARMS.items()}
    apart = {"krum", "gems", "network_gems", "personal_gems"}  # one round, or one hospital's model
    assert set(REGISTRY) - apart == compared


def test_a_cell_says_what_every_rule_chose(tmp_path: Path) -> None:
    config = {
        **plans()[0].config,
        "arms": {"local": {}, "fedavg": {}},
        "candidates": {"fedavg": [{"weighting": "samples"}, {"weighting": "uniform"}]},
    }
    found = run(config, tmp_path, lambda: None)
    assert found["local"]["settings"] == {}
    assert found["fedavg"]["settings"]["weighting"] in {"samples", "uniform"}
    assert 1 <= found["fedavg"]["rounds"] <= study_of(config).rounds
    assert found["patients"] == 104
    assert found == run(config, tmp_path, lambda: None)


def _cell(plan: CellPlan) -> Cell:
    figures: dict[str, Any] = {
        arm: {"log_loss": 0.5 + 0.01 * place, "accuracy": 0.9, "auroc": 0.8}
        for place, arm in enumerate([*ARMS, "base rate"])
    }
    for arm in ARMS:
        tried = CANDIDATES.get(arm, [{}])
        figures[arm] |= {"settings": tried[plan.config["seed"] % 2 % len(tried)], "rounds": 7}
    return Cell(plan, {**figures, "patients": 50}, "c0ffee", "command", 1.0)


def test_the_page_counts_what_was_chosen_and_ranks_the_arms() -> None:
    chosen = [p for p in plans() if p.config["study"] == "breast-cancer" and p.config["seed"] < 4]
    text = draw({plan.name: _cell(plan) for plan in chosen}).text
    assert "In how many of 4 cells" in text
    assert "| fedavg | `weighting = samples` 2; `weighting = uniform` 2 | 7 |" in text
    assert "| fedavg_adam | `learning_rate = 0.03` 2; `learning_rate = 0.1` 2; `learning" in text
    assert "|\n\nNot compared here:" in text  # which is no row of the table
    assert "| multi_krum | the default 2; `num_selected = 2` 2 | 7 |" in text
    assert "| local | 1.0 | 0.000 |" in text
    assert "4 splits, 50 test patients each" in text


def test_a_page_without_cells_has_no_tables() -> None:
    assert "|" not in draw({}).text
