"""Multi-Krum (Blanchard et al. 2017, section 4)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field

from erosion.common.aggregation.cohort import Cohort
from erosion.common.algorithms.attendance import short_of
from erosion.common.algorithms.base import Algorithm, BuildContext, Step, relative_weights
from erosion.common.algorithms.krum import (
    NumByzantine,
    krum_scores,
    needed,
    problem_with_f,
    tolerated,
)
from erosion.common.algorithms.server_optimizer import AggregatingArm
from erosion.common.settings.auto import OrAuto


@dataclass(frozen=True, slots=True)
class MultiKrumState:
    """Nothing is remembered."""


class MultiKrum(AggregatingArm):
    """The average of the updates that Krum likes best.

    Updates are scored as in Krum, and the `num_selected` with the smallest scores are averaged,
    each the same: a hospital's word for its number of samples is not taken, for a harmful one could
    name any. 1 is Krum and all is the plain average.
    Use it where some hospitals may send harmful updates and Krum's single update is too noisy.
    Parameters: `num_byzantine` (f; "auto" for the most that the updates of the round allow,
    (n - 3) / 2 rounded down), `num_selected` (m; "auto" for n - f). A study of fewer than 2f + 3
    hospitals is refused; a round with fewer usable updates is skipped, and one with the user's
    alone is local training.
    Source: Blanchard, El Mhamdi, Guerraoui, Stainer, Machine Learning with Adversaries: Byzantine
    Tolerant Gradient Descent, 2017.
    """

    private_updates: ClassVar[bool] = True

    algorithm: Literal["multi_krum"] = "multi_krum"
    num_byzantine: NumByzantine = "auto"  # f
    num_selected: OrAuto[Annotated[int, Field(ge=1)]] = "auto"  # m

    def problem_with(self, num_hospitals: int) -> str | None:
        """Krum needs n >= 2f + 3, and no more than n - f can be trusted."""
        problem = problem_with_f("multi_krum", self.num_byzantine, num_hospitals)
        if problem or self.num_selected == "auto":
            return problem
        f = (num_hospitals - 3) // 2 if self.num_byzantine == "auto" else self.num_byzantine
        if self.num_selected <= num_hospitals - f:
            return None
        return (
            f"num_selected = {self.num_selected} of {num_hospitals} hospitals leaves no room for"
            f" {f} harmful ones; lower it to {num_hospitals - f} or less"
        )

    def rule(self, context: BuildContext) -> Algorithm[MultiKrumState]:
        """The algorithm with these parameters."""
        del context

        def update(state: MultiKrumState, cohort: Cohort) -> Step[MultiKrumState]:
            if step := short_of(cohort, state, needed(self.num_byzantine)):
                return step
            f = tolerated(self.num_byzantine, cohort)
            trusted = len(cohort.updates) - f
            num_selected = (
                trusted if self.num_selected == "auto" else min(self.num_selected, trusted)
            )
            best = krum_scores(cohort, f).argsort(stable=True)[:num_selected]
            shares = torch.zeros(len(cohort.updates), dtype=torch.float64)
            shares[best] = 1 / num_selected
            weights = relative_weights(cohort, shares.tolist())
            return Step(cohort.weighted_sum(shares), weights, state)

        return Algorithm(lambda _dim: MultiKrumState(), update)
