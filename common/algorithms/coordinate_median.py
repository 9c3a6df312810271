"""Coordinate-wise median (Yin et al. 2018)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from erosion.common.aggregation.cohort import Cohort
from erosion.common.algorithms.attendance import short_of, too_few_in_study
from erosion.common.algorithms.base import Algorithm, BuildContext, Step, relative_weights
from erosion.common.algorithms.server_optimizer import AggregatingArm
from erosion.common.algorithms.trimmed_mean import mean_of_middle

FEWEST = 3  # of two values the median is the average, and one of them can be anything


@dataclass(frozen=True, slots=True)
class CoordinateMedianState:
    """Nothing is remembered."""


class CoordinateMedian(AggregatingArm):
    """Every parameter moves by the median of what the hospitals say.

    The median is taken for each parameter by itself; of an even number of values it is the mean of
    the middle two. As long as fewer than half of the hospitals are harmful, no parameter leaves the
    range of the others. The weight that is shown of a hospital is in how many parameters its value
    was the median, relative to the user's.
    Use it where many hospitals may send harmful updates, you do not know how many, and the rest are
    alike.
    It has no parameters. A study of fewer than 3 hospitals is refused; a round with 2 usable
    updates is skipped, and one with the user's alone is local training.
    Source: Yin, Chen, Ramchandran, Bartlett, Byzantine-Robust Distributed Learning: Towards Optimal
    Statistical Rates, 2018.
    """

    private_updates: ClassVar[bool] = True

    algorithm: Literal["coordinate_median"] = "coordinate_median"

    def problem_with(self, num_hospitals: int) -> str | None:
        """A median of two is their average."""
        return too_few_in_study(
            "coordinate_median", num_hospitals, FEWEST, "use 'fedavg' or add hospitals"
        )

    def rule(self, context: BuildContext) -> Algorithm[CoordinateMedianState]:
        """The algorithm."""
        del context

        def update(state: CoordinateMedianState, cohort: Cohort) -> Step[CoordinateMedianState]:
            if step := short_of(cohort, state, FEWEST):
                return step
            delta, kept = mean_of_middle(cohort, (len(cohort.updates) - 1) // 2)
            return Step(delta, relative_weights(cohort, kept.tolist()), state)

        return Algorithm(lambda _dim: CoordinateMedianState(), update)
