"""Centered clipping (Karimireddy, He, Jaggi 2021)."""

from dataclasses import dataclass
from statistics import median
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from erosion_common.aggregation.cohort import Cohort
from erosion_common.aggregation.vectors import distances_to
from erosion_common.algorithms.base import Algorithm, BuildContext, Step, alone, relative_weights
from erosion_common.algorithms.server_optimizer import AggregatingArm
from erosion_common.settings.names import OrAuto


@dataclass(frozen=True, slots=True)
class CenteredClippingState:
    """Where the next round's clipping starts from."""

    centre: Tensor  # (dim,) v, the last round's aggregate


class CenteredClipping(AggregatingArm):
    """The average of the updates after each was pulled in to a ball around a centre.

    The step is v + mean of (u_i - v) min(1, tau / |u_i - v|): no hospital can move it further than
    tau / n. With centre = "previous" v is the last round's aggregate, as in the paper; with centre
    = "own" it is the user's own update of this round, so that the step is never further than tau
    from local training. The weight that is shown of a hospital is its factor min(1, tau / ...)
    relative to the user's. Use it where any hospital's influence must be bounded, no matter what it
    sends, and the others should still be averaged. The paper's guarantee against a slow, steady
    push in one direction holds with momentum at the hospitals.
    Source: Karimireddy, He, Jaggi, Learning from History for Byzantine Robust Optimization, 2021;
    centre = "own": He, Karimireddy, Jaggi, Byzantine-Robust Decentralized Learning via
    ClippedGossip, 2022.
    """

    private_updates: ClassVar[bool] = True

    algorithm: Literal["centered_clipping"] = "centered_clipping"
    radius: OrAuto[Annotated[float, Field(gt=0)]] = Field(  # tau
        default="auto",
        description='Length to which an update\'s distance from the centre is cut. `"auto"`: the '
        "median distance.",
    )
    steps: int = Field(  # L
        default=1, ge=1, le=100, description="How often the result becomes the next centre."
    )
    centre: Literal["previous", "own"] = Field(
        default="previous", description='"previous" or "own".'
    )

    def rule(self, context: BuildContext) -> Algorithm[CenteredClippingState]:
        return Algorithm(lambda dim: CenteredClippingState(torch.zeros(dim)), self._update)

    def _update(self, state: CenteredClippingState, cohort: Cohort) -> Step[CenteredClippingState]:
        if not cohort.peers:
            return alone(cohort, state)
        num_updates = len(cohort.updates)
        centre = state.centre if self.centre == "previous" else cohort.own.delta
        for _ in range(self.steps):
            distances = distances_to(centre, cohort.blocks())
            factors = torch.clamp(self._radius(distances) / distances, max=1.0)
            factors = factors.nan_to_num(nan=1.0)  # 0 / 0: at the centre nothing is clipped
            # v + mean f_i (u_i - v) = (1 - mean f_i) v + sum (f_i / n) u_i
            centre = cohort.weighted_sum(factors / num_updates).add_(
                centre, alpha=1 - float(factors.mean())
            )
        weights = relative_weights(cohort, factors.tolist())
        return Step(centre, weights, CenteredClippingState(centre))

    def _radius(self, distances: Tensor) -> float:
        if self.radius != "auto":
            return self.radius
        # Around the user's own update the user is at distance 0 by definition.
        compared = distances if self.centre == "previous" else distances[1:]
        return float(median(compared.tolist()))
