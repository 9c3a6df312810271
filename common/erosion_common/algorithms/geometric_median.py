"""Geometric median, RFA (Pillutla, Kakade, Harchaoui 2019, Algorithm 2)."""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from erosion_common.aggregation.cohort import Cohort
from erosion_common.algorithms.server_optimizer import RobustRule


class GeometricMedian(RobustRule):
    """The point with the smallest sum of distances to all updates.

    It is found by a few smoothed Weiszfeld steps from the average: v <- sum w_i u_i / sum w_i with
    w_i = a_i / max(nu, |u_i - v|), so that a far update counts less. As long as harmful hospitals
    have less than half of the weight they cannot carry the result away. Use it where some hospitals
    may send harmful updates; it stays nearer to an average than Krum, and is kinder than the median
    to hospitals that merely differ. A study of fewer than 3 hospitals is refused; a round with 2
    usable updates is skipped, and one with the user's alone is local training.
    Source: Pillutla, Kakade, Harchaoui, Robust Aggregation for Federated Learning, 2019.
    """

    algorithm: Literal["geometric_median"] = "geometric_median"
    steps: int = Field(
        default=3,
        ge=1,
        le=1_000,
        description="Weiszfeld steps; the paper's 3 leave some of the pull of an update that is "
        "hundreds of times too long, and more cost next to nothing here.",
    )
    smoothing: float = Field(  # nu
        default=1e-6,
        gt=0,
        description="Distance below which being nearer makes an update count no more.",
    )
    weighting: Literal["uniform", "samples"] = Field(
        default="uniform",
        description='What a hospital counts: `"uniform"` each alike, `"samples"` by its number '
        "of samples, as in the paper, which takes its word for it.",
    )

    def aggregate(self, cohort: Cohort) -> tuple[Tensor, Tensor]:
        """Return the mixture that the steps end at."""
        importance = torch.tensor(
            [u.num_samples if self.weighting == "samples" else 1 for u in cohort.updates],
            dtype=torch.float64,
        )
        shares = weiszfeld(cohort.gram(), importance, self.steps, self.smoothing)
        return cohort.weighted_sum(shares), shares


def weiszfeld(gram: Tensor, importance: Tensor, steps: int, smoothing: float) -> Tensor:
    """Return the shares (n,) of the points in their geometric median, from (n, n).

    Every point on the way is a mixture v = sum w_j u_j, so its distances follow from the inner
    products: |u_i - v|^2 = <u_i, u_i> - 2 <u_i, v> + <v, v>, and the updates are not read again.
    """
    shares = importance / importance.sum()
    for _ in range(steps):
        with_v = gram @ shares
        squared_distances = gram.diagonal() - 2 * with_v + shares @ with_v
        weights = importance / squared_distances.clamp(min=0.0).sqrt().clamp(min=smoothing)
        shares = weights / weights.sum()
    return shares
