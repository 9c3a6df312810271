"""Federated averaging with fine-tuning at the user."""

from dataclasses import replace
from typing import Literal

from pydantic import Field
from torch import Tensor

from erosion.common.algorithms.fedavg import Averaging
from erosion.common.learning.local_work import LocalWork


class FineTuning(Averaging):
    """FedAvg, and then some local training of the averaged model at the user.

    The hospitals train one common model; the user predicts with that model after training it
    further on its own patients. The common model is not changed by it. Use it as the simplest
    personalised method: it needs nothing but FedAvg, and is often as good as any.
    Parameters: `tuning_rounds` (how many rounds of local training the tuning takes) and
    `weighting` ("samples" or "uniform", of the average).
    Source: Wang et al., Federated Evaluation of On-device Personalization, 2019.
    """

    algorithm: Literal["fine_tuning"] = "fine_tuning"
    tuning_rounds: int = Field(default=1, ge=1, le=1000)

    def personal(self, work: LocalWork) -> Tensor:
        """The received parameters after `tuning_rounds` rounds of local training."""
        tuned = work.received
        for number in range(self.tuning_rounds):
            # Each with its own order of patients, as rounds have.
            tuned = tuned + replace(work, round=work.round + number).sgd(tuned).delta
        return tuned
