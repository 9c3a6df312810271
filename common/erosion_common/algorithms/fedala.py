"""FedALA: adaptive local aggregation (Zhang et al. 2023, equations 4 and 5)."""

from collections.abc import Callable
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from erosion_common.algorithms.base import OUTPUT_LAYER, Layout
from erosion_common.algorithms.fedavg import Averaging
from erosion_common.algorithms.personal_layers import own_places
from erosion_common.learning.local_work import LocalOutcome, LocalWork
from erosion_common.learning.trainable import places_of

_LOCAL, _WEIGHTS = "local", "weights"  # theta_i after the last training, and W, both (dim,)
FIRST_PASSES = 10  # in place of a pass until W has converged, which the paper makes once


class FedAla(Averaging):
    """Before it trains, a hospital mixes the common model into its own, parameter by parameter.

    It starts from theta + (common - theta) W, theta being its model after the last training, with a
    W between 0 and 1 for every parameter of `mixed`, and 1 for the others. W follows the gradient
    of the loss for one pass of mini-batches in each round, ten in the first with a theta. What it
    trains from there is averaged; the user predicts with its mixture. Use it where FedAvg's model
    undoes what training here has achieved. Peers mix as well, because what they train from there is
    the common model.
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
        """Return the mixture."""
        return self._mixture(work)[0]

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
        places = own_places(self.mixed, places_of(work.model)).to(common.device)
        for number in range(FIRST_PASSES if is_first else 1):
            for gradient, _ in work.gradients(f"mixing {number}"):
                slope = gradient(local + apart * weights) * apart
                weights = (weights - self.mixing_rate * slope * places).clamp(0, 1)
        return local + apart * weights, weights
