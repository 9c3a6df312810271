"""Coordinate-wise trimmed mean and median (Yin et al. 2018)."""

from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from erosion_common.aggregation.cohort import Cohort
from erosion_common.algorithms.base import too_few_in_study
from erosion_common.algorithms.server_optimizer import RobustRule


class TrimmedMean(RobustRule):
    """Every parameter moves by the average of the values without the extreme ones.

    For each parameter separately the f largest and the f smallest values are dropped, and the
    others averaged, each the same. The weight that is shown of a hospital is in how many parameters
    its value was kept, relative to the user's. Use it where up to f hospitals may send harmful
    updates and the rest are alike; it keeps more of the averaging than the coordinate median. A
    study of fewer than 2f + 1 hospitals is refused; a round with fewer usable updates is skipped,
    and one with the user's alone is local training.
    Source: Yin, Chen, Ramchandran, Bartlett, Byzantine-Robust Distributed Learning: Towards Optimal
    Statistical Rates, 2018.
    """

    algorithm: Literal["trimmed_mean"] = "trimmed_mean"
    num_byzantine: int = Field(
        default=1,
        ge=1,
        description="f: largest, and smallest, values that are dropped of each parameter.",
    )

    @property
    def fewest(self) -> int:
        """Return 2f + 1: with fewer, nothing would be between the extremes."""
        return 2 * self.num_byzantine + 1

    def problem_with(self, num_hospitals: int) -> str | None:
        """Refuse n < 2f + 1; name the largest possible f."""
        most = (num_hospitals - 1) // 2
        return too_few_in_study(
            f"trimmed_mean with num_byzantine = {self.num_byzantine}",
            num_hospitals,
            self.fewest,
            (f"lower num_byzantine to {most} or less" if most else "use 'fedavg'")
            + ", or add hospitals",
        )

    def aggregate(self, cohort: Cohort) -> tuple[Tensor, Tensor]:
        """Return it without f values at either end."""
        return mean_of_middle(cohort, self.num_byzantine)


def mean_of_middle(cohort: Cohort, num_trimmed: int) -> tuple[Tensor, Tensor]:
    """Average without the `num_trimmed` largest and smallest values of each coordinate.

    Returns the mean of the others (dim,), and the share of coordinates in which each update's value
    lay among them, own first: (n+1,) float64.
    """
    dim, num_updates = len(cohort.own.delta), len(cohort.updates)
    delta = torch.empty_like(cohort.own.delta)
    num_kept = np.zeros(num_updates, np.int64)
    for place, rows in cohort.blocks():
        # numpy, because it sorts so short rows five to sixteen times as fast as torch
        ascending = np.stack(rows, axis=1)  # (width, n+1)
        ascending.sort(axis=1)
        middle = ascending[:, num_trimmed : num_updates - num_trimmed]
        np.mean(middle, axis=1, out=delta[place].numpy())
        # A value equal to the last one that is kept counts as kept: which of them was is arbitrary.
        smallest, largest = middle[:, 0], middle[:, -1]
        for i, row in enumerate(rows):
            values = row.numpy()
            num_kept[i] += np.count_nonzero((values >= smallest) & (values <= largest))
    return delta, torch.from_numpy(num_kept / dim)


class CoordinateMedian(RobustRule):
    """Every parameter moves by the median of what the hospitals say.

    The median is taken for each parameter separately; of an even number of values it is the mean of
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

    algorithm: Literal["coordinate_median"] = "coordinate_median"

    def aggregate(self, cohort: Cohort) -> tuple[Tensor, Tensor]:
        """Return the middle value, or the mean of the middle two."""
        return mean_of_middle(cohort, (len(cohort.updates) - 1) // 2)
