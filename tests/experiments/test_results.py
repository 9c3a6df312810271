"""Results that are shipped are those of this program, not of an earlier one."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from experiments.cells import CellPlan, read_cells
from experiments.papers import EXPERIMENTS, named

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "experiment",
    ["one-round", "protections", "local-steps", "inference", "quadratic", "mean-estimation"],
)
def test_the_quickest_cell_without_a_data_set_has_the_figures_that_are_shipped(
    experiment: str,
) -> None:
    found = named(experiment)
    cells = read_cells(ROOT / "experiments" / "results" / experiment, found.plans())
    cell = min(
        (cell for cell in cells.values() if not needs_data(cell.plan)), key=lambda c: c.seconds
    )
    figures = found.run(cell.plan.config, None)
    assert flat(figures) == pytest.approx(flat(cell.figures), rel=1e-3, abs=1e-6)


def needs_data(plan: CellPlan) -> bool:
    """A data set that is downloaded; a cell that is timed has no figures of its own, either."""
    return plan.config.get("study", "breast-cancer") != "breast-cancer" or "timed" in plan.config


def flat(figures: object, place: str = "") -> dict[str, object]:
    """Every figure by where it stands."""
    parts: Iterable[tuple[object, object]]
    if isinstance(figures, dict):
        parts = figures.items()
    elif isinstance(figures, list | tuple):
        parts = enumerate(figures)
    else:
        return {place: figures}
    return {
        where: figure
        for key, part in parts
        for where, figure in flat(part, f"{place}/{key}").items()
    }


MINUTES = {  # the first that an experiment's own words hold
    "a quarter of an hour": 15,
    "half an hour": 30,
    "an hour": 60,
    "two hours": 120,
    "three hours": 180,
    "four hours": 240,
    "ten hours": 600,
    "fifteen hours": 900,
}


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_an_experiment_says_how_long_it_takes_as_its_cells_do(experiment: str) -> None:
    found = named(experiment)
    words = found.about.lower()
    minutes = next((minutes for said, minutes in MINUTES.items() if said in words), 5)
    plans = found.plans()
    cells = read_cells(ROOT / "experiments" / "results" / experiment, plans).values()
    whole = sum(cell.seconds for cell in cells) / 60 * len(plans) / len(cells)
    assert whole < 3 * minutes
    if minutes > 5:
        assert whole > minutes / 3
