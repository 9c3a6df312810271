"""Adaptive personalised federated learning, APFL (Deng et al. 2020, Algorithm 1)."""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from erosion_common.algorithms.fedavg import Averaging
from erosion_common.learning.local_work import LocalOutcome, LocalWork
from erosion_common.learning.training import Training

_LOCAL, _MIXING = "local", "mixing"  # v and a


class Apfl(Averaging):
    """The user predicts with a mixture of a local model and FedAvg's, and learns how much of each.

    The mixture is a v + (1 - a) w, with v the user's own parameters, which never leave it, and w
    the common ones. Each local step moves w by its own gradient, v by the mixture's, and a, too, by
    the mixture's, within [0, 1]. Use it where you cannot say beforehand how much a hospital should
    rely on itself. It needs optimizer = "sgd" without momentum.
    Source: Deng, Kamani, Mahdavi, Adaptive Personalized Federated Learning, 2020.
    """

    private_updates: ClassVar[bool] = False
    takes_own_steps: ClassVar[bool] = True

    algorithm: Literal["apfl"] = "apfl"
    mixing: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="Share of the local model at the start; 0 is FedAvg, 1 is local training.",
    )
    adaptive: bool = Field(default=True, description="Whether that share is learned.")

    def train(self, work: LocalWork) -> LocalOutcome:
        """Train w for the average; at the user also v and a, step by step."""
        if not work.is_user:  # nobody predicts with a peer's mixture
            return super().train(work)
        w, (v, a) = work.received, self._state(work)
        rate, samples_seen = work.training.learning_rate, 0
        for gradient, taken in work.gradients():
            of_common, of_mixture = (gradient(at) for at in (w, a * v + (1 - a) * w))
            slope = float(torch.dot(of_mixture, v - w))  # of the loss in a
            v, w = v - rate * a * of_mixture, w - rate * of_common
            a = min(max(a - rate * slope, 0.0), 1.0) if self.adaptive else a
            samples_seen += taken
        keep = {_LOCAL: v, _MIXING: torch.tensor([a])}
        return LocalOutcome(w - work.received, samples_seen, keep=keep)

    def personal(self, work: LocalWork) -> Tensor:
        """Return a v + (1 - a) w with the newest w."""
        v, a = self._state(work)
        return a * v + (1 - a) * work.received

    def problem_with_privacy(self) -> str | None:
        """Refuse privacy: the user's common model moves by many steps, the others' by one."""
        return "the user trains both of its models step by step, and a private round has one step"

    def problem_with_training(self, training: Training) -> str | None:
        """Refuse other optimisers: its steps are those of plain SGD."""
        return training.problem_for_plain_sgd("apfl")

    def _state(self, work: LocalWork) -> tuple[Tensor, float]:
        """Return v, which starts where the common model does, and a."""
        if _LOCAL not in work.kept:
            return work.received, self.mixing
        return work.kept[_LOCAL], float(work.kept[_MIXING])
