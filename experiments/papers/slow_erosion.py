"""The recommended Weight Erosion with several erosion shares: the slowness that is enough.

`distance_penalty = "auto"` takes the first rounds' distances for those of all rounds. But the
user's own update shrinks while the model comes to rest, so relative distances grow, and weights end
earlier than the share says. Splits are others than those of `which_rule`, of the same patients:
what is chosen here is put to the test by `confirmation`, on other data.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean

from erosion.experiments.cells import Cell, CellPlan
from erosion.experiments.experiment import Page
from erosion.experiments.papers.rule_page import RECOMMENDED_ARM, Arms
from erosion.experiments.papers.which_rule import plans_of, settings
from erosion.experiments.standard_error import in_words

SHARES = (1.25, 2.0, 3.0, 5.0, 8.0)
SEEDS = range(100, 110)


ARMS: Arms = {
    f"share-{100 * share:.0f}": {**RECOMMENDED_ARM, "erosion_share": share} for share in SHARES
}


def plans() -> Sequence[CellPlan]:
    """A cell for each seed and setting."""
    return plans_of(settings(), SEEDS, ARMS)


def draw(cells: Mapping[str, Cell]) -> Page:
    """Mean log losses by setting, and the mean over settings of what is lost to the best share."""
    found = {
        setting: [
            cell.figures
            for cell in cells.values()
            if (cell.plan.config["study"], cell.plan.config["user"]) == setting
        ]
        for setting in settings()
    }
    found = {setting: figures for setting, figures in found.items() if len(figures) > 1}
    if not found:
        return Page("# How slow is slow enough?\n\nNo setting has two splits yet.")
    losses = {
        arm: [[float(one[arm]["log_loss"]) for one in figures] for figures in found.values()]
        for arm in ARMS
    }
    best = [min(fmean(losses[arm][place]) for arm in ARMS) for place in range(len(found))]
    rows = []
    for arm, of_settings in losses.items():
        regrets = [fmean(of) - least for of, least in zip(of_settings, best, strict=True)]
        rows.append(
            f"| {arm} | {' | '.join(in_words(of) for of in of_settings)} |"
            f" {fmean(regrets):.4f} | {max(regrets):.4f} |"
        )
    names = [f"{study}, {user} ({len(of)} splits)" for (study, user), of in found.items()]
    lines = [
        "# How slow is slow enough?",
        "",
        '`weight_erosion` with `distance_penalty = "auto"`, `size_penalty = 0`, weights by samples',
        "and an output bias of each hospital's own; the name has `erosion_share` in percent. Log",
        "loss of the user's test patients; ± is one standard error over splits, which share",
        "patients. The last two columns are what is lost to the best share of each setting: on",
        "average, and at most.",
        "",
        f"| | {' | '.join(names)} | mean | most |",
        f"| --- |{' --- |' * (len(found) + 2)}",
        *rows,
        "",
    ]
    return Page("\n".join(lines))
