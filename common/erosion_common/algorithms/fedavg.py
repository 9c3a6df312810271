"""Federated averaging (McMahan et al. 2017, Algorithm 1), and what differs at the sites alone."""

from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from erosion_common.aggregation.cohort import Cohort
from erosion_common.algorithms.base import (
    OUTPUT_BIAS,
    Algorithm,
    BuildContext,
    NoState,
    Step,
    no_state,
    relative_weights,
)
from erosion_common.algorithms.server_optimizer import AggregatingArm
from erosion_common.learning.local_work import LocalOutcome, LocalWork, WorkSize
from erosion_common.learning.training import Training


class Averaging(AggregatingArm):
    """Shared by methods that average all accepted updates."""

    sums_only: ClassVar[bool] = True
    private_updates: ClassVar[bool] = True

    weighting: Literal["samples", "uniform"] = Field(
        default="samples",
        description='What a hospital counts in the average: `"samples"`, by its number of '
        'training patients, a peer by at most that of all others together; `"uniform"`: all alike.',
    )

    def rule(self, context: BuildContext) -> Algorithm[Any]:
        """Return the average, by training samples or uniform."""
        by_samples = self.weighting == "samples"

        def update(state: NoState, cohort: Cohort) -> Step[NoState]:
            counts = torch.tensor(
                [u.num_samples if by_samples else 1 for u in cohort.updates], dtype=torch.float64
            )
            delta = self.average(cohort, counts)
            return Step(delta, relative_weights(cohort, counts.tolist()), state)

        return Algorithm(no_state, update)


class FedAvg(Averaging):
    """Every hospital counts, no matter what its update looks like.

    The aggregate is the average of all accepted updates, weighted by training samples or uniformly.
    Use it where the hospitals' patients are alike, and as the baseline that personalised methods
    must beat.
    Source: McMahan et al., Communication-Efficient Learning of Deep Networks, 2017.
    """

    leaves_user_out: ClassVar[bool] = True

    algorithm: Literal["fedavg"] = "fedavg"


class FedProx(Averaging):
    """FedAvg in which local training is pulled back towards the received parameters.

    Every local step minimises the loss plus mu/2 |y - x|^2, with y the parameters at the hospital
    and x those that the round started from. So hospitals stray less from each other during many
    local steps. Use it where FedAvg is unstable because the hospitals differ and train long; it
    makes no personal model.
    Source: Li et al., Federated Optimization in Heterogeneous Networks, 2020.
    """

    leaves_user_out: ClassVar[bool] = True

    algorithm: Literal["fedprox"] = "fedprox"
    proximal_weight: float = Field(  # mu
        default=0.1,
        ge=0,
        description="How strongly local training is pulled back to where the round began; 0 is "
        "FedAvg.",
    )

    def train(self, work: LocalWork) -> LocalOutcome:
        """Train with the proximal term, which has the gradient mu (y - x)."""
        result = work.update(work.received, lambda y: self.proximal_weight * (y - work.received))
        return LocalOutcome(result.delta, result.samples_seen)

    def problem_with_training(self, training: Training) -> str | None:
        return training.problem_with_pull(self.proximal_weight)


class FineTuning(Averaging):
    """FedAvg, and then some local training of the averaged model at the user.

    The hospitals train one common model; the user predicts with that model after training it
    further on its own patients. The common model is not changed by it. Use it as the simplest
    personalised method: it needs nothing but FedAvg, and is often as good as any.
    Source: Wang et al., Federated Evaluation of On-device Personalization, 2019.
    """

    algorithm: Literal["fine_tuning"] = "fine_tuning"
    tuning_rounds: int = Field(
        default=1, ge=1, le=1000, description="How many rounds of local training the tuning takes."
    )

    def personal(self, work: LocalWork) -> Tensor:
        return tuned(work, self.tuning_rounds)


def tuned(work: LocalWork, rounds: int) -> Tensor:
    """Return the received parameters after these rounds of local training."""
    parameters = work.received
    for number in range(rounds):
        # Each with its own order of patients, as rounds have.
        parameters = parameters + replace(work, round=work.round + number).sgd(parameters).delta
    return parameters


class PersonalIntercept(Averaging):
    """FedAvg, except that every hospital has its own output bias, which it never sends.

    The bias starts at the hospital's base rates and is trained like everything else; the user
    predicts with the common parameters and its own bias. Use it where the hospitals' patients
    differ mainly in how common the disease is, which is usual.
    Source: FedPer (Arivazhagan et al., Federated Learning with Personalization Layers, 2019) with
    the smallest of layers.
    """

    leaves_user_out: ClassVar[bool] = True

    algorithm: Literal["personal_intercept"] = "personal_intercept"
    own_parameters: tuple[str, ...] = Field(
        default=(OUTPUT_BIAS,), description="What else is kept."
    )


_REACH = 1e-2  # |delta d| of the difference that stands for a Hessian's product with d


class PerFedAvg(Averaging):
    """FedAvg of a start, from which each hospital's model is one gradient step away.

    Hospitals lower F_i(w) = f_i(w - alpha grad f_i(w)): a step is w - rate (I - alpha H) grad f_i(w
    - alpha grad f_i(w)), each of the three from another mini-batch, as long as `training.order` is
    random. The "first_order" variant leaves H out, "hessian_free" takes a difference of two
    gradients for its product. The user predicts with its own step, along the gradient of all its
    training patients. Use it with few patients, where tuning for longer would overfit. It needs
    optimizer = "sgd" without momentum.
    Source: Fallah, Mokhtari, Ozdaglar, Personalized Federated Learning with Theoretical Guarantees:
    A Model-Agnostic Meta-Learning Approach, 2020.
    """

    private_updates: ClassVar[bool] = False
    takes_own_steps: ClassVar[bool] = True
    is_of_plain_sgd: ClassVar[bool] = True

    algorithm: Literal["per_fedavg"] = "per_fedavg"
    inner_rate: float = Field(  # alpha
        default=0.1, gt=0, description="Size of the step from the start to a hospital's model."
    )
    variant: Literal["first_order", "hessian_free"] = Field(
        default="hessian_free", description='"first_order" or "hessian_free".'
    )

    @property
    def trainings(self) -> int:
        return 2 if self.variant == "first_order" else 3

    def train(self, work: LocalWork) -> LocalOutcome:
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
        slope = work.gradient(work.received) + work.training.weight_decay * work.received
        return work.received - self.inner_rate * slope

    def local_trainings(self, whole: WorkSize) -> tuple[WorkSize, ...]:
        return (replace(whole, side_by_side=self.trainings),)
