"""Optimal averaging of two models (Grimberg et al. 2021)."""

from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from erosion_common.algorithms.fedavg import Averaging
from erosion_common.learning.local_work import LocalOutcome, LocalWork, WorkSize

STEPS = 10  # the mixture is chosen among a = 0, 0.1, ..., 1
_LOCAL = "local"  # theta_0


class ModelAveraging(Averaging):
    """The user predicts with the best average of its local model and FedAvg's.

    The model is (1 - a) theta_0 + a theta_1, with theta_0 trained at the user alone and theta_1 the
    common one. The a in 0, 0.1, ..., 1 is chosen that predicts best for some of the user's training
    patients, who are left out of all training for it. (The paper's formula, a = V_0 / (V_0 + V_1 +
    Delta^2), needs variances that are not known.) Use it for a plain answer to "how much of the
    common model is worth having", where the user can spare the patients.
    Source: Grimberg, Hartley, Karimireddy, Jaggi, Optimal Model Averaging: Towards Personalized
    Collaborative Learning, 2021.
    """

    algorithm: Literal["model_averaging"] = "model_averaging"
    validation_share: float = Field(
        default=0.25,
        gt=0,
        lt=1,
        description="Share of the user's training patients by which models are compared.",
    )

    def train(self, work: LocalWork) -> LocalOutcome:
        """Train for the average; at the user, its local model as well."""
        if not work.is_user:
            return super().train(work)
        rest, _ = work.hold_out(self.validation_share)
        local = work.kept.get(_LOCAL, work.received)
        return replace(super().train(rest), keep={_LOCAL: local + rest.sgd(local).delta})

    def local_trainings(self, whole: WorkSize) -> tuple[WorkSize, ...]:
        return (whole.without_held_out(self.validation_share) if whole.is_user else whole,)

    def personal(self, work: LocalWork) -> Tensor:
        """Return the best average for the patients held out; of several the most local one."""
        _, held_out = work.hold_out(self.validation_share)
        local = work.kept.get(_LOCAL, work.received)
        averages = [torch.lerp(local, work.received, step / STEPS) for step in range(STEPS + 1)]
        return min(averages, key=held_out.loss)
