"""Krum and Multi-Krum (Blanchard et al. 2017)."""

from abc import abstractmethod
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from erosion_common.aggregation.cohort import Cohort, squared_distances
from erosion_common.algorithms.base import too_few_in_study
from erosion_common.algorithms.server_optimizer import RobustRule
from erosion_common.settings.names import OrAuto

NumByzantine = OrAuto[Annotated[int, Field(ge=0)]]


class _ScoringRule(RobustRule):
    """Averages the updates with the smallest scores, all alike."""

    num_byzantine: NumByzantine = Field(  # f
        default="auto",
        description='f: hospitals that may send anything. `"auto"`: the most that the updates of '
        "the round allow.",
    )

    @property
    def fewest(self) -> int:
        """Return 2f + 3."""
        return 3 if self.num_byzantine == "auto" else 2 * self.num_byzantine + 3

    def problem_with(self, num_hospitals: int) -> str | None:
        """Refuse n < 2f + 3; name the largest possible f, and an alternative."""
        if self.num_byzantine == "auto":
            return super().problem_with(num_hospitals)
        most = (num_hospitals - 3) // 2
        trimmed = most + 1  # a trimmed mean needs 2f + 1 hospitals
        remedy = f"use 'trimmed_mean' with num_byzantine = {trimmed}" if trimmed else "use 'fedavg'"
        if most > 0:  # 0 would withstand nobody
            remedy = f"lower num_byzantine to {most} or less, {remedy}"
        rule = f"{self.algorithm} with num_byzantine = {self.num_byzantine}"
        return too_few_in_study(rule, num_hospitals, self.fewest, f"{remedy}, or add hospitals")

    @abstractmethod
    def selected(self, trusted: int) -> int:
        """Return how many updates are averaged; `trusted` is n - f."""

    def aggregate(self, cohort: Cohort) -> tuple[Tensor, Tensor]:
        """Return the mean of those selected."""
        num = len(cohort.updates)
        f = (num - 3) // 2 if self.num_byzantine == "auto" else self.num_byzantine
        count = self.selected(num - f)
        best = krum_scores(cohort, f).argsort(stable=True)[:count]
        shares = torch.zeros(num, dtype=torch.float64)
        shares[best] = 1 / count
        return cohort.weighted_sum(shares), shares


class Krum(_ScoringRule):
    """Each round follows the one hospital with the update that has the nearest neighbours.

    With n updates of which up to f may be anything, an update's score is the sum of the squared
    distances to its n - f - 2 nearest others; the step is the update with the smallest score, the
    user's own where scores are equal. n counts the user, who has no privilege otherwise. Use it
    where some hospitals may send harmful updates and the rest are alike; it averages nothing away,
    and hospitals that differ for good reasons are treated as harmful. A study of fewer than 2f + 3
    hospitals is refused; a round with fewer usable updates is skipped, and one with the user's
    alone is local training.
    Source: Blanchard, El Mhamdi, Guerraoui, Stainer, Machine Learning with Adversaries: Byzantine
    Tolerant Gradient Descent, 2017.
    """

    algorithm: Literal["krum"] = "krum"

    def selected(self, trusted: int) -> int:
        return 1


class MultiKrum(_ScoringRule):
    """The average of the updates that Krum likes best.

    Updates are scored as in Krum, and the `num_selected` with the smallest scores are averaged,
    each the same: a hospital's word for its number of samples is not taken, for a harmful one could
    name any. 1 is Krum and all is the plain average. Use it where some hospitals may send harmful
    updates and Krum's single update is too noisy. A study of fewer than 2f + 3 hospitals is
    refused; a round with fewer usable updates is skipped, and one with the user's alone is local
    training.
    Source: Blanchard, El Mhamdi, Guerraoui, Stainer, Machine Learning with Adversaries: Byzantine
    Tolerant Gradient Descent, 2017.
    """

    algorithm: Literal["multi_krum"] = "multi_krum"
    num_selected: OrAuto[Annotated[int, Field(ge=1)]] = Field(  # m
        default="auto", description='Updates that are averaged. `"auto"`: all but f.'
    )

    def problem_with(self, num_hospitals: int) -> str | None:
        """Refuse n < 2f + 3, and more than n - f selected."""
        problem = super().problem_with(num_hospitals)
        if problem or self.num_selected == "auto":
            return problem
        f = (num_hospitals - 3) // 2 if self.num_byzantine == "auto" else self.num_byzantine
        if self.num_selected <= num_hospitals - f:
            return None
        return (
            f"num_selected = {self.num_selected} of {num_hospitals} hospitals leaves no room for"
            f" {f} harmful ones; lower it to {num_hospitals - f} or less"
        )

    def selected(self, trusted: int) -> int:
        return trusted if self.num_selected == "auto" else min(self.num_selected, trusted)


def krum_scores(cohort: Cohort, num_byzantine: int) -> Tensor:
    """Return sum of squared distances to the n - f - 2 nearest others, own first: (n,) float64."""
    apart = squared_distances(cohort).fill_diagonal_(torch.inf)  # none is its own neighbour
    num_neighbours = len(apart) - num_byzantine - 2
    return apart.sort(dim=1).values[:, :num_neighbours].sum(dim=1)
