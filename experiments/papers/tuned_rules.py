"""Compares the rules once each has had its settings chosen inside the user's training part.

The arms of which-rule, but every rule has a few values of its main constants to choose from, and
every rule, training alone included, its number of rounds: those with the least log loss on half
of the user's training patients, on which that trial's models were not trained. The candidates are
those of `candidates.toml`. The user's test patients decide nothing.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from erosion_common.study.study import Study
from experiments.cells import Cell, CellPlan, Values
from experiments.experiment import experiment
from experiments.page import Page, constants, table
from experiments.papers.rules import (
    EXPLORED,
    RECOMMENDED,
    RECOMMENDED_ARM,
    SEEDS,
    SLOW,
    Arms,
    Setting,
    draw_rules,
    plans_of,
    shipped_settings,
)
from experiments.splits import figures_of_split, shipped_study, simulated_split

Candidates = Mapping[str, Sequence[Mapping[str, Any]]]

FOLDS = 2  # of the user's training patients, of which one is what settings are chosen by
TITANIC_USERS = ("to-20", "to-35", "above-35", "age-unknown")
# The variants of a rule that which-rule has apart are candidates here.
VARIANTS = ("weight_erosion_slow", SLOW, "evidence_erosion_decay")
ARMS: Arms = {
    **{name: arm for name, arm in EXPLORED.items() if name not in VARIANTS},
    RECOMMENDED: RECOMMENDED_ARM,
}
CANDIDATES: Candidates = constants("candidates")


def settings() -> list[Setting]:
    """Return those of which-rule, and each hospital of the Titanic as the user."""
    return [*shipped_settings(), *(("titanic", user) for user in TITANIC_USERS)]


def plans() -> list[CellPlan]:
    """Return a cell for each setting and seed, where all arms have the same patients."""
    return plans_of(
        settings(), range(SEEDS), arms=ARMS, candidates=CANDIDATES, folds=FOLDS, version=2
    )


def study_of(config: Values) -> Study:
    """Return the shipped study for this cell's user, with the arms and what they choose from."""
    selection = {key: config[key] for key in ("folds", "candidates")}
    return shipped_study(
        config["study"],
        **{key: config[key] for key in ("user", "arms", "seed")},
        selection={"method": "validation", **selection},
    )


def run(config: Values, data_dir: Path | None) -> Values:
    """Simulate one split: the trials, and each arm with what they chose."""
    found = simulated_split(study_of(config), data_dir)
    figures = figures_of_split(found.evaluation.arms, found.evaluation.base_rate)
    for arm, choice in found.choices.items():
        figures[arm] |= {"settings": dict(choice.settings), "rounds": choice.rounds}
    return figures


def draw(cells: Mapping[str, Cell]) -> Page:
    """Draw the tables of which-rule, and what was chosen how often."""
    return draw_rules(
        "tuned-rules",
        ARMS,
        RECOMMENDED,
        settings(),
        cells,
        num_cells=len(cells),
        chosen=_chosen(cells),
    )


def _chosen(cells: Mapping[str, Cell]) -> str:
    rows = []
    for arm in ARMS if cells else ():
        found = [cell.figures[arm] for cell in cells.values()]
        counts = [
            f"{_in_words(tried)} {sum(one['settings'] == tried for one in found)}"
            for tried in CANDIDATES.get(arm, ())
        ]
        rows.append([arm, "; ".join(counts), f"{median(one['rounds'] for one in found):g}"])
    return table(["arm", "settings", "rounds"], rows)


def _in_words(tried: Mapping[str, Any]) -> str:
    parts = []
    for key, value in tried.items():
        if isinstance(value, Mapping):  # the arm's name holds the optimiser's
            parts += [_in_words({name: v for name, v in value.items() if name != "name"})]
        else:
            parts.append(f"`{key} = {str(value).lower() if isinstance(value, bool) else value}`")
    return " ".join(parts) or "the default"


EXPERIMENT = experiment(
    "tuned-rules",
    plans,
    run,
    draw,
    study_of,
)
