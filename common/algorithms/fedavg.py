"""Federated averaging (McMahan et al. 2017, Algorithm 1)."""

from dataclasses import dataclass
from typing import Literal

import torch

from common.algorithm import Algorithm, ArmBase, BuildContext, Step
from common.cohort import Cohort


@dataclass(frozen=True, slots=True)
class FedAvgState:
    """Nothing is remembered: every round's weights come from that round's cohort."""


def _init(_dim: int) -> FedAvgState:
    return FedAvgState()


class FedAvg(ArmBase):
    """Every hospital counts, whatever its update looks like.

    The aggregate is the average of all accepted updates, weighted by training samples or uniformly.
    Use it where the hospitals' patients are alike, and as the baseline that personalised methods
    must beat. Parameter: `weighting` ("samples" or "uniform").
    Source: McMahan et al., Communication-Efficient Learning of Deep Networks, 2017.
    """

    algorithm: Literal["fedavg"] = "fedavg"
    weighting: Literal["samples", "uniform"] = "samples"

    def build(self, context: BuildContext) -> Algorithm[FedAvgState]:
        """The algorithm with these parameters."""
        del context
        by_samples = self.weighting == "samples"

        def update(state: FedAvgState, cohort: Cohort) -> Step[FedAvgState]:
            counts = torch.tensor(
                [u.num_samples if by_samples else 1 for u in cohort.updates], dtype=torch.float64
            )
            delta = cohort.weighted_sum(counts / counts.sum())
            relative = (counts / counts[0]).tolist()
            weights = {u.agent: w for u, w in zip(cohort.updates, relative, strict=True)}
            return Step(delta, weights, state)

        return Algorithm(_init, update)
