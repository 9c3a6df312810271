"""A local model mixed with FedAvg's: APFL (Deng et al. 2020) and FedALA (Zhang et al. 2023)."""

from collections.abc import Callable
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from erosion_common.algorithms.base import OUTPUT_LAYER, STANDS_OUT, Layout
from erosion_common.algorithms.fedavg import Averaging
from erosion_common.algorithms.personal_layers import own_places
from erosion_common.learning.local_work import LocalOutcome, LocalWork
from erosion_common.learning.trainable import named_trained_parameters, places_of

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
    is_of_plain_sgd: ClassVar[bool] = True

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

    def _state(self, work: LocalWork) -> tuple[Tensor, float]:
        """Return v, which starts where the common model does, and a."""
        if _LOCAL not in work.kept:
            return work.received, self.mixing
        return work.kept[_LOCAL], float(work.kept[_MIXING])


_WEIGHTS = "weights"  # W of FedALA, (dim,); its local model is theta after the last training
FIRST_PASSES = 10  # in place of a pass until W has converged, which the paper makes once


class FedAla(Averaging):
    """Before it trains, a hospital mixes the common model into its own, parameter by parameter.

    It starts from theta + (common - theta) W, theta being its model after the last training, with a
    W between 0 and 1 for every parameter of `mixed`, and 1 for the others. W follows the gradient
    of the loss over the mini-batches of one local training in each round, of ten until it first
    moves. What it trains from there is averaged; the user predicts with its mixture. Use it where
    FedAvg's model undoes what training here has achieved. Peers mix as well, because what they
    train from there is the common model.
    Source: Zhang et al., FedALA: Adaptive Local Aggregation for Personalized Federated Learning,
    2023.
    """

    private_updates: ClassVar[bool] = False

    algorithm: Literal["fedala"] = "fedala"
    mixed: tuple[str, ...] = Field(
        default=(OUTPUT_LAYER,),
        description='Parameters with a weight: as own_parameters, or "*" for all.',
    )
    mixing_rate: float = Field(default=1.0, gt=0, description="Size of W's steps.")  # eta

    def train(self, work: LocalWork) -> LocalOutcome:
        """Train from the mixture, and keep where that ends, and W."""
        start, weights = self._mixture(work)
        result = work.sgd(start)
        local = start + result.delta
        keep = {_LOCAL: local, _WEIGHTS: weights}
        return LocalOutcome(local - work.received, result.samples_seen, keep=keep)

    def personal(self, work: LocalWork) -> Tensor:
        return self._mixture(work)[0]

    def problem_with_sealing(self) -> str | None:
        """Refuse them: its updates start from what hospitals keep."""
        return super().problem_with_sealing() or STANDS_OUT

    def problem_with_model(self, layout: Callable[[], Layout]) -> str | None:
        """Refuse names that the model does not have."""
        for name in self.mixed:
            if not own_places([name], layout()).any():
                return f"mixed names {name!r}; the model has {', '.join(layout())}"
        return None

    def _mixture(self, work: LocalWork) -> tuple[Tensor, Tensor]:
        common, local = work.received, work.kept.get(_LOCAL)
        if local is None:
            return common, torch.ones_like(common)
        weights, apart = work.kept[_WEIGHTS], common - local
        is_first = bool((weights == 1).all())
        shapes = {name: tuple(p.shape) for name, p in named_trained_parameters(work.model)}
        mixed = own_places(self.mixed, places_of(shapes)).to(common.device)
        for number in range(FIRST_PASSES if is_first else 1):
            for gradient, _ in work.gradients(f"mixing {number}"):
                slope = gradient(local + apart * weights) * apart
                weights = (weights - self.mixing_rate * slope * mixed).clamp(0, 1)
        return local + apart * weights, weights
