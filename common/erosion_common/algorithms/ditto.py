"""Personal models pulled to a common one: Ditto (Li et al. 2021) and pFedMe (Dinh et al. 2020)."""

from dataclasses import replace
from typing import ClassVar, Literal

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
        return training.problem_with_pull(self.proximal_weight)


class PFedMe(Averaging):
    """FedAvg of a centre w, which follows every hospital's personal model near it.

    In each local step a hospital finds theta, which lowers the loss of a mini-batch plus lambda/2
    |theta - w|^2, by some gradient steps, and moves w by a share of the way to it. The user
    predicts with theta for the newest w, from a round of local training with that pull. Use it like
    `ditto`, from which it differs in that the common model is trained for personal ones. The
    paper's beta is server_optimizer = {name = "momentum", momentum = 0, learning_rate = beta}. It
    needs optimizer = "sgd" without momentum.
    Source: Dinh, Tran, Nguyen, Personalized Federated Learning with Moreau Envelopes, 2020, with
    eta lambda = approach; its lambda = 15 goes with a learning rate of 0.005.
    """

    private_updates: ClassVar[bool] = False
    takes_own_steps: ClassVar[bool] = True
    is_of_plain_sgd: ClassVar[bool] = True

    algorithm: Literal["pfedme"] = "pfedme"
    proximal_weight: float = Field(  # lambda
        default=1.0, gt=0, description="How strongly a personal model is pulled to the centre."
    )
    inner_steps: int = Field(  # K
        default=5, ge=1, le=1000, description="Gradient steps to a mini-batch's personal model."
    )
    approach: float = Field(  # eta lambda
        default=0.25, gt=0, le=1, description="Share of the way to it that the centre moves."
    )

    def train(self, work: LocalWork) -> LocalOutcome:
        w, seen = work.received, 0
        for gradient, taken in work.gradients():
            theta = w
            for _ in range(self.inner_steps):
                slope = gradient(theta) + self.proximal_weight * (theta - w)
                theta = theta - work.training.learning_rate * slope
            w = w - self.approach * (w - theta)
            seen += taken
        return LocalOutcome(w - work.received, seen)

    def personal(self, work: LocalWork) -> Tensor:
        w = work.received
        return w + work.sgd(w, lambda theta: self.proximal_weight * (theta - w)).delta

    def problem_with_training(self, training: Training) -> str | None:
        of_steps = super().problem_with_training(training)
        return of_steps or training.problem_with_pull(self.proximal_weight)
