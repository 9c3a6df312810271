"""Every rule for a user whom no other hospital is like: its labels are the other way round.

The default study, with the hospital that the other pages have as the harmful one in the user's
place. Nobody can help it; what is asked is which rules find that out.
"""

from collections.abc import Mapping, Sequence

from erosion.experiments.cells import Cell, CellPlan
from erosion.experiments.experiment import Page
from erosion.experiments.papers.confirmation import ARMS
from erosion.experiments.papers.rule_page import RECOMMENDED, RulePage, Setting
from erosion.experiments.papers.which_rule import plans_of

SEEDS = 50
SETTINGS: Sequence[Setting] = (("breast-cancer", "miscoded"),)


def plans() -> Sequence[CellPlan]:
    """A cell for each seed."""
    return plans_of(SETTINGS, range(SEEDS), ARMS)


def draw(cells: Mapping[str, Cell]) -> Page:
    """The same tables as those of `which_rule`."""
    heading = [
        "# When the user is the odd one out",
        "",
        "The rules of [which rule wins](../which-rule/README.md) and Weight Erosion with",
        '`preset = "recommended"`, for the one hospital of the default study whose labels are the',
        "other way round than the four others'. None of these can help it as they are: a rule that",
        "finds that out does about as well as training alone. ± is one standard error over splits,",
        "which share patients.",
    ]
    return RulePage(ARMS, RECOMMENDED, SETTINGS, allows_for_sharing=True).draw(cells, heading)
