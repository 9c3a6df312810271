"""The cost of differential privacy, as an experiment."""

from dataclasses import replace
from pathlib import Path

import pytest

from experiments.cells import Cell, CellFile, Values
from experiments.papers import privacy

KEPT = Path(__file__).parents[2] / "experiments" / "results" / "privacy"


@pytest.mark.parametrize("arm", ["local", "weight_erosion"])
def test_a_cell_has_the_errors_of_each_of_its_splits(arm: str) -> None:
    name = "local-0" if arm == "local" else f"{arm}-epsilon3-0"
    plan = next(plan for plan in privacy.plans() if plan.name == name)
    figures = privacy.run({**plan.config, "seeds": [4]}, None)
    assert len(figures["errors"]) == len(figures["log_loss"]) == 1
    assert 0 <= figures["errors"][0] <= figures["patients"] == 104


def cells_of(done: set[str], figures: Values) -> dict[str, Cell]:
    """Those cells, with only as many of their splits as there are errors."""
    found = {}
    for plan in privacy.plans():
        if plan.name in done:
            seeds = plan.config["seeds"][: len(figures["errors"])]
            of = replace(plan, config={**plan.config, "seeds": seeds})
            found[plan.name] = Cell(of, figures, "c", "x", 1.0)
    return found


def test_differences_are_of_the_same_splits() -> None:
    figures = {"errors": [3, 5], "log_loss": [0.1, 0.2], "patients": 104}
    apart = {"local-0", "weight_erosion-none-10"}
    assert "| weight_erosion minus local | – |" in privacy.draw(cells_of(apart, figures)).text
    both = cells_of({*apart, "weight_erosion-none-0"}, figures)
    assert "| weight_erosion minus local | +0.00 (+0.00 to +0.00) |" in privacy.draw(both).text


@pytest.mark.parametrize("epsilon", privacy.EPSILONS)
def test_the_setting_with_the_fewest_errors_over_the_trial_splits_is_used(epsilon: float) -> None:
    errors = {}
    for rate, clip in privacy.TRIED:
        name = f"trial-epsilon{epsilon:g}-rate{rate:g}-clip{clip:g}"
        errors[rate, clip] = sum(CellFile.read(KEPT).cells[name].figures["errors"])
    assert errors[privacy.CHOSEN[epsilon]] == min(errors.values())
