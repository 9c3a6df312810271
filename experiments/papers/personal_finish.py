"""Is collaborating safe with a finish at the user's site? Against what it has to beat.

Weight Erosion by the recommended preset, with and without a finish, the user alone, and a tuned
ridge of its patients, on the same splits. The finish was drawn up on seven of these settings with
about a hundred variants, outside this program. On the two last ones no finish had been tried until
the program's code stood as committed: they confirm it or do not.
"""

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from erosion_common.study.study import Study
from experiments.cells import Cell, CellPlan, Values
from experiments.experiment import experiment
from experiments.page import Page, grid, named, page
from experiments.papers.rules import (
    RECOMMENDED,
    RECOMMENDED_ARM,
    Arms,
    Found,
    Setting,
    by_setting,
    plans_of,
    test_share,
)
from experiments.splits import figures_of_split, shipped_study, simulated_split
from experiments.tables import about, comparison_table, comparisons, figures_of, in_words

SEEDS, SEEDS_UNSEEN = 12, 16
RIDGE, FINISH = "ridge", "weight_erosion_finish"
ARMS: Arms = {
    FINISH: {**RECOMMENDED_ARM, "finish": "evidence"},
    RECOMMENDED: RECOMMENDED_ARM,
    "local": {},
}
NAMES = (RIDGE, *ARMS)
EXPLORED: tuple[Setting, ...] = (
    ("breast-cancer", "home"),
    ("heart-disease", "cleveland"),
    ("heart-disease", "hungary"),
    ("heart-disease", "va"),
    ("diabetes-130", "medicaid"),
    ("tcga-brca-three-years", "northeast"),
    ("titanic", "to-20"),
)
STRESS: tuple[Setting, ...] = (("breast-cancer", "miscoded"),)
UNSEEN: tuple[Setting, ...] = (("diabetes-130", "hmo"), ("tcga-brca-three-years", "south"))
FROZEN_AT = "9ab32578"  # the cells of UNSEEN were run once, after it
NAMED_THEN = "87e56654"  # the same files, before the history was freed of others


def plans() -> list[CellPlan]:
    """Return a cell for each setting and seed, where all arms have the same patients."""
    known = plans_of([*EXPLORED, *STRESS], range(SEEDS), arms=ARMS, version=1)
    return [*known, *plans_of(UNSEEN, range(SEEDS_UNSEEN), arms=ARMS, version=1)]


def study_of(config: Values) -> Study:
    """Return the shipped study for this cell's user, with the arms and the ridge."""
    study = shipped_study(config["study"], **{key: config[key] for key in ("user", "arms", "seed")})
    evaluation = study.evaluation.model_copy(update={"references": (RIDGE,)})
    return study.model_copy(update={"evaluation": evaluation})


def run(config: Values, data_dir: Path | None) -> Values:
    """Simulate one split."""
    reply = simulated_split(study_of(config), data_dir, references=True).evaluation
    finish = reply.finishes[FINISH]
    said: dict[str, Any] = {"slope": finish.slope.value, "share_alone": finish.share_alone}
    return figures_of_split({**reply.arms, **reply.references}, reply.base_rate) | said


def draw(cells: Mapping[str, Cell]) -> Page:
    """Draw the losses, those minus the ridge's, and how far the finishes follow the others."""
    parts = {
        "Settings that the finish was drawn up on": EXPLORED,
        "The user's outcomes are the wrong way round": STRESS,
        f"Settings on which no finish had been tried before commit {FROZEN_AT}": UNSEEN,
    }
    every = by_setting(cells, [*EXPLORED, *STRESS, *UNSEEN])
    return page(
        "personal-finish",
        frozen_at=FROZEN_AT,
        named_then=NAMED_THEN,
        parts=[
            _part(heading, found)
            for heading, of in parts.items()
            if (found := {setting: every[setting] for setting in of if setting in every})
        ],
    )


def _part(heading: str, found: Found) -> dict[str, Any]:
    others = [name for name in NAMES if name != RIDGE]
    minus = comparisons(found, others, [RIDGE], test_share=test_share, together=len(found))
    finishes = [one for one in minus if one.ours == FINISH and one.difference]
    means = {
        name: fmean(one.difference.mean for one in minus if one.ours == name and one.difference)
        for name in others
    }
    worst = max(finishes, key=lambda one: one.difference.mean if one.difference else 0.0)
    return {
        "heading": heading,
        "losses": grid(
            "setting, splits",
            {f"{', '.join(setting)}, {len(of)}": of for setting, of in found.items()},
            {**named(NAMES), "slope": "slope", "share alone": "share_alone"},
            lambda of, name: (
                in_words(figures_of(of, name, "log_loss"))
                if name in NAMES
                else f"{fmean(one[name] for one in of):.2f}"
            ),
        ),
        "about": about(minus, "a column"),
        "minus_ridge": comparison_table(
            minus,
            lambda one: [", ".join(one.setting)],
            lambda one: one.ours,
            last=["mean", *(f"{mean:+.3f}" for mean in means.values())],
        ),
        "mean": f"{means[FINISH]:+.3f}",
        "worst": f"{worst.difference.mean if worst.difference else 0.0:+.3f}",
        "worst_setting": ", ".join(worst.setting),
    }


EXPERIMENT = experiment(
    "personal-finish",
    plans,
    run,
    draw,
    study_of,
)
