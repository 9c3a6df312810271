"""Ditto (Li et al. 2021, Algorithm 1)."""

from dataclasses import replace
from typing import Literal

from pydantic import Field
from torch import Tensor

from erosion_common.algorithms.fedavg import Averaging
from erosion_common.learning.local_work import LocalOutcome, LocalWork
from erosion_common.learning.training import Training

_PERSONAL = "personal"  # v


class Ditto(Averaging):
    """FedAvg, and a personal model of the user that is pulled towards the common one.

    In every round the user also trains a model v that never leaves it, on the loss plus lambda/2 |v
    - w|^2, with w the common parameters received. lambda = 0 is local training, a large lambda is
    FedAvg; times the learning rate it must be below 2. Use it where a hospital has enough patients
    for its own model and wants it steadied by the others.
    Source: Li, Hu, Beirami, Smith, Ditto: Fair and Robust Federated Learning, 2021.
    """

    algorithm: Literal["ditto"] = "ditto"
    proximal_weight: float = Field(  # lambda
        default=0.1,
        ge=0,
        description="How strongly the personal model is pulled towards the common one; 0 is "
        "local training.",
    )

    def train(self, work: LocalWork) -> LocalOutcome:
        """Train w for the average; at the user also v."""
        common = super().train(work)
        if not work.is_user:  # nobody predicts with a peer's v
            return common
        personal = self.personal(work)
        pulled = work.sgd(personal, lambda v: self.proximal_weight * (v - work.received))
        return replace(common, keep={_PERSONAL: personal + pulled.delta})

    def personal(self, work: LocalWork) -> Tensor:
        """Return v, which starts where the common model does."""
        return work.kept.get(_PERSONAL, work.received)

    def problem_with_training(self, training: Training) -> str | None:
        """Refuse a strong pull with long steps."""
        return training.problem_with_pull(self.proximal_weight)
