"""Puts to the test, on data never looked at before, what the comparison of all rules suggested.

The arms are those of `which_rule` with their constants as they stood; the two studies' settings
were written down before any arm had been trained on them. Whatever comes out is reported.
"""

from collections.abc import Mapping, Sequence

from erosion.experiments.cells import Cell, CellPlan
from erosion.experiments.experiment import Page
from erosion.experiments.papers.rule_page import (
    RECOMMENDED,
    RECOMMENDED_ARM,
    Arms,
    RulePage,
    Setting,
)
from erosion.experiments.papers.which_rule import ARMS as EXPLORED
from erosion.experiments.papers.which_rule import plans_of

SEEDS = 50
ARMS: Arms = {**EXPLORED, RECOMMENDED: RECOMMENDED_ARM}
SETTINGS: Sequence[Setting] = (
    ("diabetes-130", "medicaid"),
    ("diabetes-130", "hmo"),
    ("tcga-brca-three-years", "northeast"),
    ("tcga-brca-three-years", "south"),
)


def plans() -> Sequence[CellPlan]:
    """A cell for each setting and seed."""
    return plans_of(SETTINGS, range(SEEDS), ARMS)


def draw(cells: Mapping[str, Cell]) -> Page:
    """The same tables as those of `which_rule`."""
    heading = [
        "# Does it hold on other data?",
        "",
        "The rules of [which rule wins](../which-rule/README.md), with the same constants, and",
        'Weight Erosion with `preset = "recommended"` as [slow erosion](../slow-erosion/README.md)',
        "chose it, on two studies that had not been looked at when these were chosen: readmission",
        "of diabetic patients within 30 days, by payer (diabetes-130), and death of breast cancer",
        "within three years, by region (TCGA-BRCA). ± is one standard error over splits. Those of",
        "diabetes-130 draw 500 patients of thousands for each hospital, so that they share few and",
        "the second mark below asks too much of them; those of TCGA-BRCA share patients.",
    ]
    return RulePage(ARMS, RECOMMENDED, SETTINGS, allows_for_sharing=True).draw(cells, heading)
