"""FedProx (Li et al. 2020, Algorithm 2)."""

from typing import Literal

from pydantic import Field

from erosion.common.algorithms.fedavg import Averaging
from erosion.common.learning.local_work import LocalOutcome, LocalWork
from erosion.common.learning.training import Training


class FedProx(Averaging):
    """FedAvg in which local training is pulled back towards the received parameters.

    Every local step minimises the loss plus mu/2 |y - x|^2, with y the parameters at the hospital
    and x those that the round started from. So hospitals stray less from each other during many
    local steps. Use it where FedAvg is unstable because the hospitals differ and train long; it
    makes no personal model.
    Parameters: `proximal_weight` (mu; 0 is FedAvg, and times the learning rate it must be below 2)
    and `weighting` ("samples" or "uniform").
    Source: Li et al., Federated Optimization in Heterogeneous Networks, 2020.
    """

    algorithm: Literal["fedprox"] = "fedprox"
    proximal_weight: float = Field(default=0.1, ge=0)  # mu

    def train(self, work: LocalWork) -> LocalOutcome:
        """Local training with the proximal term, whose gradient is mu (y - x)."""
        result = work.update(work.received, lambda y: self.proximal_weight * (y - work.received))
        return LocalOutcome(result.delta, result.samples_seen)

    def problem_with_training(self, training: Training) -> str | None:
        """A strong pull needs short steps."""
        return training.problem_with_pull(self.proximal_weight)
