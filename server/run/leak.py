"""Signs that a column is known only after the outcome, which no model may be given."""

from collections.abc import Mapping

from erosion.common.protocol.messages import BestColumn, FinalMetrics
from erosion.common.settings.base import Settings
from erosion.common.tasks.task import Task

TOO_GOOD = 0.99  # AUROC, R² or concordance that no model of patients reaches
STRONG, NEAR = 0.9, 0.01  # of a column by itself, and how near it comes to the models


class Leak(Settings):
    """Why the figures are too good."""

    metric: str
    arm: str  # the best
    figure: float
    column: str | None = None  # that predicts as well by itself; None: none does
    alone: float | None = None  # its figure

    def sentence(self, task: type[Task]) -> str:
        """What is wrong, and what to look at."""
        metric = task.metric(self.metric)
        of_arm = f"{metric.label} {metric.text(self.figure)} of {self.arm}"
        if self.column is None or self.alone is None:
            question = "is a column known only after the outcome, or made from it?"
            return f"{of_arm} is seldom real: {question}"
        return (
            f"The column {self.column} predicts like the models by itself ({metric.label}"
            f" {metric.text(self.alone)}, {of_arm}): is it known only after the outcome?"
        )


def leak_of(
    task: type[Task], arms: Mapping[str, FinalMetrics], best: BestColumn | None
) -> Leak | None:
    """The sign that these figures are, or None."""
    name = task.leak_metric
    found = {arm: figure for arm, m in arms.items() if (figure := m.get(name)) is not None}
    if not found:
        return None
    arm = max(found, key=found.__getitem__)
    alone = best.measure if best is not None else 0.0
    if best is not None and alone >= max(STRONG, found[arm] - NEAR):
        return Leak(metric=name, arm=arm, figure=found[arm], column=best.name, alone=alone)
    return Leak(metric=name, arm=arm, figure=found[arm]) if found[arm] > TOO_GOOD else None
