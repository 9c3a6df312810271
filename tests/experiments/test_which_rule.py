"""The comparison of all rules: its arms, and a page from few cells."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from erosion.common.algorithms import REGISTRY
from erosion.common.study.study import Study, load_study
from erosion.experiments.cells import Cell
from erosion.experiments.papers.which_rule import ARMS, draw, plans, settings
from erosion.experiments.testbed import study_path


def test_every_setting_takes_every_arm() -> None:
    for study, user in settings():
        raw = load_study(study_path(study)).model_dump(mode="json")
        raw |= {"user": user, "arms": ARMS, "evaluation": {"test_share": 0.3}}
        assert list(Study.model_validate(raw).arms) == list(ARMS)


def test_no_rule_that_averages_is_left_out() -> None:
    compared = {settings.get("algorithm", name) for name, settings in ARMS.items()}
    apart = {"krum", "gems", "network_gems", "personal_gems"}  # one round, or one hospital's model
    assert set(REGISTRY) - apart == compared


def test_the_page_ranks_the_arms_and_marks_what_differs() -> None:
    cells: dict[str, Cell] = {}
    for plan in plans():
        if plan.config["study"] != "breast-cancer" or plan.config["seed"] >= 20:
            continue
        figures: dict[str, Any] = {
            arm: {"log_loss": 0.5 + 0.01 * place, "accuracy": 0.9, "auroc": 0.8}
            for place, arm in enumerate([*ARMS, "base rate"])
        }
        cells[plan.name] = Cell(plan, {**figures, "patients": 50}, "c0ffee", "command", 1.0)
    text = draw(cells).text
    assert "| local | 1.0 | 0.000 |" in text
    assert f"| fedavg | 2.0 | {0.01:.3f} |" in text
    assert "| fedavg | 0.510 ± 0.000 | +0.010 ± 0.000 \\* | 5.0 ± 0.0 | 0.800 ± 0.000 |" in text
    assert "20 splits, 50 test patients each" in text
    last = cells.popitem()[1]
    cells["other"] = replace(last, figures={**last.figures, "patients": 51})
    assert "20 splits, 50 to 51 test patients each" in draw(cells).text
    assert Path(study_path("breast-cancer")).exists()
