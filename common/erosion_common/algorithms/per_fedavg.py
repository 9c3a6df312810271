"""Per-FedAvg (Fallah et al. 2020, Algorithm 1): a start from which one step makes a good model."""

from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from erosion_common.algorithms.fedavg import Averaging
from erosion_common.learning.local_work import LocalOutcome, LocalWork, WorkSize
from erosion_common.learning.training import Training

_REACH = 1e-2  # |delta d| of the difference that stands for a Hessian's product with d


class PerFedAvg(Averaging):
    """FedAvg of a start, from which each hospital's model is one gradient step away.

    Hospitals lower F_i(w) = f_i(w - alpha grad f_i(w)): a step is w - rate (I - alpha H) grad f_i(w
    - alpha grad f_i(w)), each of the three from another mini-batch. The "first_order" variant
    leaves H out, "hessian_free" takes a difference of two gradients for its product. The user
    predicts with its own step, along the gradient of all its training patients. Use it with few
    patients, where tuning for longer would overfit. It needs optimizer = "sgd" without momentum.
    Source: Fallah, Mokhtari, Ozdaglar, Personalized Federated Learning with Theoretical Guarantees:
    A Model-Agnostic Meta-Learning Approach, 2020.
    """

    private_updates: ClassVar[bool] = False
    takes_own_steps: ClassVar[bool] = True

    algorithm: Literal["per_fedavg"] = "per_fedavg"
    inner_rate: float = Field(  # alpha
        default=0.1, gt=0, description="Size of the step from the start to a hospital's model."
    )
    variant: Literal["first_order", "hessian_free"] = Field(
        default="hessian_free", description='"first_order" or "hessian_free".'
    )

    @property
    def trainings(self) -> int:
        """Return the number of mini-batches of a step."""
        return 2 if self.variant == "first_order" else 3

    def train(self, work: LocalWork) -> LocalOutcome:
        """Train the start."""
        w, alpha, seen = work.received, self.inner_rate, 0
        batches = (work.gradients(name) for name in ("", "outer", "curvature")[: self.trainings])
        for (inner, taken), (outer, more), *third in zip(*batches, strict=True):
            step = outer(w - alpha * inner(w))
            seen += taken + more
            for curvature, rest in third:
                reach = _REACH / step.norm().clamp(min=1e-12) * step
                bent = curvature(w + reach) - curvature(w - reach)
                step = step - alpha * bent * (step.norm() / (2 * _REACH))
                seen += rest
            w = w - work.training.learning_rate * step
        return LocalOutcome(w - work.received, seen)

    def personal(self, work: LocalWork) -> Tensor:
        """Return the received start after the user's step."""
        slope = work.gradient(work.received) + work.training.weight_decay * work.received
        return work.received - self.inner_rate * slope

    def local_trainings(self, whole: WorkSize) -> tuple[WorkSize, ...]:
        """Return its steps, of several mini-batches each."""
        return (replace(whole, side_by_side=self.trainings),)

    def problem_with_training(self, training: Training) -> str | None:
        """Refuse other optimisers: its steps are those of plain SGD."""
        return training.problem_for_plain_sgd("per_fedavg")
