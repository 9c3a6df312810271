"""Federated averaging (McMahan et al. 2017, Algorithm 1)."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from erosion.common.aggregation.cohort import Cohort
from erosion.common.algorithms.base import Algorithm, BuildContext, Step, relative_weights
from erosion.common.algorithms.server_optimizer import AggregatingArm


@dataclass(frozen=True, slots=True)
class FedAvgState:
    """Nothing is remembered: every round's weights come from that round's cohort."""


def _init(_dim: int) -> FedAvgState:
    return FedAvgState()


class Averaging(AggregatingArm):
    """What methods share whose aggregate is the average of all accepted updates."""

    sums_only: ClassVar[bool] = True
    private_updates: ClassVar[bool] = True

    weighting: Literal["samples", "uniform"] = "samples"

    def rule(self, context: BuildContext) -> Algorithm[Any]:
        """The average, by training samples or uniform."""
        del context
        by_samples = self.weighting == "samples"

        def update(state: FedAvgState, cohort: Cohort) -> Step[FedAvgState]:
            counts = torch.tensor(
                [u.num_samples if by_samples else 1 for u in cohort.updates], dtype=torch.float64
            )
            delta = cohort.weighted_sum(counts / counts.sum())
            return Step(delta, relative_weights(cohort, counts.tolist()), state)

        return Algorithm(_init, update)


class FedAvg(Averaging):
    """Every hospital counts, whatever its update looks like.

    The aggregate is the average of all accepted updates, weighted by training samples or uniformly.
    Use it where the hospitals' patients are alike, and as the baseline that personalised methods
    must beat. Parameter: `weighting` ("samples" or "uniform").
    Source: McMahan et al., Communication-Efficient Learning of Deep Networks, 2017.
    """

    algorithm: Literal["fedavg"] = "fedavg"
