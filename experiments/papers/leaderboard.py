"""`docs/leaderboard.md`: every method on every setting, from cells that other experiments keep.

    python -m experiments.papers.leaderboard > docs/leaderboard.md

Cells of one setting and seed are of the same split; losses that two of them keep are compared.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from experiments.cells import read_cells
from experiments.experiment import RESULTS
from experiments.page import Page, page, table
from experiments.papers import image_sites, personal_finish, references
from experiments.papers.rules import (
    CONFIRMATION,
    NEW_SETTINGS,
    ODD_ONE_OUT,
    ODD_SETTINGS,
    RECOMMENDED,
    REFERENCE,
    WHICH_RULE,
    Setting,
    shipped_settings,
    test_share,
)
from experiments.program import run_program
from experiments.tables import (
    MARKS,
    Values,
    comparison_table,
    comparisons,
    figures_of,
    intervals,
    one_or_range,
)

BASE = "base rate"
RENAMED = {personal_finish.FINISH: f"{RECOMMENDED}_finish"}
SOURCES = (
    *(WHICH_RULE, ODD_ONE_OUT, CONFIRMATION),
    *(references.EXPERIMENT, personal_finish.EXPERIMENT),
)
FEWEST = 4  # splits of an interval
SAME = 1e-3  # at most between the losses of one split on two machines; two splits differ by more
Splits = Mapping[Setting, Mapping[int, Mapping[str, Values]]]  # seed -> arm -> metrics
Row = tuple[str, float, float, str, float]  # arm, mean rank, mean and worst minus local, and where


def settings() -> list[Setting]:
    """Return the study and the user of each column."""
    return [*shipped_settings(), *ODD_SETTINGS, *NEW_SETTINGS]


def read_splits(results: Path = RESULTS) -> Splits:
    """Return what is known of each split of each setting."""
    found: dict[Setting, dict[int, dict[str, Values]]] = {each: {} for each in settings()}
    for experiment in SOURCES:
        for cell in read_cells(results / experiment.name, experiment.plans()).values():
            config = cell.plan.config
            of_setting = found.get((config["study"], config["user"]))
            if of_setting is None or references.POOLED in config:
                continue
            seed = config["seed"]
            of_setting[seed] = merged(of_setting.get(seed, {}), cell.figures)
    return found


def merged(known: Mapping[str, Values], figures: Values) -> dict[str, Values]:
    """Return what is known of a split with a cell's figures, where they are of the same patients.

    The losses that both keep show whether they are: the base rate's where shares of classes vary,
    an arm's everywhere.
    """
    given = {RENAMED.get(n, n): of for n, of in figures.items() if isinstance(of, Mapping)}
    both = known.keys() & given.keys()
    apart = max((abs(known[n]["log_loss"] - given[n]["log_loss"]) for n in both), default=0.0)
    return {**known, **(given if apart <= SAME else {})}


def compared(found: Splits) -> tuple[list[str], list[str]]:
    """Return the arms that every setting has in some splits, and the others."""
    of_each = [{arm for of in seeds.values() for arm in of} for seeds in found.values()]
    everywhere, anywhere = set.intersection(*of_each), set.union(*of_each)
    return sorted(everywhere - {BASE}), sorted(anywhere - everywhere)


def ranked(found: Splits, arms: Sequence[str]) -> tuple[list[Row], dict[Setting, int]]:
    """Return the arms by mean rank over the splits that have all, and how many splits these are."""
    common = {
        setting: [of for of in seeds.values() if all(arm in of for arm in arms)]
        for setting, seeds in found.items()
    }
    common = {setting: splits for setting, splits in common.items() if splits}
    means = {
        arm: {
            setting: fmean(figures_of(splits, arm, "log_loss"))
            for setting, splits in common.items()
        }
        for arm in arms
    }
    rows = []
    for arm, of in means.items():
        places = [sum(other[s] < of[s] for other in means.values()) + 1 for s in common]
        minus = {setting: of[setting] - means[REFERENCE][setting] for setting in common}
        worst = max(minus, key=lambda setting: minus[setting])
        rows.append((arm, fmean(places), fmean(minus.values()), ", ".join(worst), minus[worst]))
    return sorted(rows, key=lambda row: row[1]), {s: len(splits) for s, splits in common.items()}


def _sections(found: Splits, order: Sequence[str]) -> Iterator[dict[str, Any]]:
    """A table for each study: every arm minus local training, by user."""
    for study in dict.fromkeys(study for study, _ in found):
        here = {setting: seeds for setting, seeds in found.items() if setting[0] == study}
        every = [
            one
            for arm in order
            if arm != REFERENCE
            for one in comparisons(
                {
                    setting: [of for of in seeds.values() if arm in of]
                    for setting, seeds in here.items()
                },
                [arm],
                [REFERENCE],
                test_share=test_share,
                together=len(order) - 1,
                fewest=FEWEST,
            )
        ]
        yield {
            "title": study,
            "against": comparison_table(every, lambda one: [one.ours], lambda one: one.setting[1]),
        }


def _images(results: Path) -> tuple[str, dict[str, str], str]:
    """The mean log losses of the image sites' cells minus local training's.

    With the number of splits of each part, and of the cells in which a method diverged.
    """
    cells = read_cells(results / image_sites.EXPERIMENT.name, image_sites.plans())
    found: dict[str, dict[Setting, list[Values]]] = {"": {}, "newer": {}}
    for cell in cells.values():
        config = cell.plan.config
        of_part = found[config.get("part", "")]
        of_part.setdefault((config["study"], config["user"]), []).append(cell.figures)
    arms = {
        "": [arm for arm in image_sites.ROWS if arm not in (REFERENCE, image_sites.MAJORITY)],
        "newer": [arm for arm in image_sites.NEWER if arm != REFERENCE],
    }
    every = [
        one
        for part, of_part in found.items()
        for one in comparisons(
            of_part,
            arms[part],
            [REFERENCE],
            test_share=test_share,
            together=sum(map(len, arms.values())),
            fewest=FEWEST,
        )
    ]
    against = comparison_table(every, lambda one: [one.ours], lambda one: ", ".join(one.setting))
    splits = {part: one_or_range(map(len, of_part.values())) for part, of_part in found.items()}
    newer = [figures for of_user in found["newer"].values() for figures in of_user]
    diverged = Counter(
        arm for figures in newer for arm, of in figures.items() if image_sites.DIVERGED in of
    )
    times = ", ".join(f"`{arm}` in {num} of {len(newer)} cells" for arm, num in diverged.items())
    return against, splits, times


def draw(results: Path = RESULTS) -> Page:
    """Draw the page."""
    found = read_splits(results)
    arms, others = compared(found)
    rows, common = ranked(found, arms)
    order = [*(row[0] for row in rows), *others]
    images, splits, diverged = _images(results)
    return page(
        "leaderboard",
        intervals=intervals("a column"),
        marks=MARKS,
        common=", ".join(f"{', '.join(setting)} {count}" for setting, count in common.items()),
        num_settings=len(common),
        summary=table(
            ["method", "mean rank", "mean minus local", "worst minus local", "where"],
            [
                [arm, f"{rank:.1f}", f"{mean:+.3f}", f"{worst:+.3f}", where]
                for arm, rank, mean, where, worst in rows
            ],
        ),
        sections=list(_sections(found, order)),
        images=images,
        splits=splits[""],
        newer=splits["newer"],
        diverged=diverged,
    )


def main() -> None:
    """Print the page."""
    print(draw().text, end="")


if __name__ == "__main__":
    run_program(main)
