"""The cost of differential privacy, as an experiment."""

from pathlib import Path

import pytest

from erosion.experiments.cells import Cell
from erosion.experiments.papers import privacy

KEPT = Path(__file__).parents[2] / "experiments" / "results" / "privacy"


@pytest.mark.parametrize("arm", ["local", "weight_erosion"])
def test_a_cell_has_the_errors_of_each_of_its_splits(arm: str) -> None:
    name = "local-0" if arm == "local" else f"{arm}-epsilon3-0"
    plan = next(plan for plan in privacy.plans() if plan.name == name)
    ticks: list[None] = []
    figures = privacy.run({**plan.config, "seeds": [4]}, None, lambda: ticks.append(None))
    assert len(figures["errors"]) == len(figures["log_loss"]) == len(ticks) == 1
    assert 0 <= figures["errors"][0] <= figures["patients"] == 104


def test_the_page_shows_what_was_run_and_a_dash_for_the_rest() -> None:
    figures = {"errors": [3, 5], "log_loss": [0.1, 0.2], "patients": 104}
    done = {"local-0", "weight_erosion-epsilon3-0", "trial-epsilon3-rate4-clip1"}
    cells = {p.name: Cell(p, figures, "c", "x", 1.0) for p in privacy.plans() if p.name in done}
    text = privacy.draw(cells).text
    assert "| weight_erosion | – | – | 4.00 ± 1.00 (0.150), 2 splits | – |" in text
    assert "**4.0**" in text
