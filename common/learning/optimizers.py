"""The optimisers of local training.

`PlainSgd` has the arithmetic of `torch.optim.SGD`, to the last bit. Torch's own asks around every
step who is watching, which with a model of a few parameters takes longer than the training, and the
first one of a process imports most of torch, which takes seconds and memory.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from erosion.common.learning.training import Training


class PlainSgd:
    """The steps of one round, on a processor; momentum starts at nothing."""

    def __init__(self, parameters: Sequence[Tensor], training: Training) -> None:
        self._parameters, self._rate = parameters, training.learning_rate
        self._momentum, self._weight_decay = training.momentum, training.weight_decay
        self._buffers: list[Tensor | None] = [None] * len(parameters)

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    def step(self) -> None:
        """Move every parameter that has a gradient. Call it where nothing is recorded."""
        for place, parameter in enumerate(self._parameters):
            gradient = parameter.grad
            if gradient is None:
                continue
            if self._weight_decay:
                gradient = gradient.add(parameter, alpha=self._weight_decay)
            if self._momentum:
                gradient = self._gathered(place, gradient)
            parameter.add_(gradient, alpha=-self._rate)

    def _gathered(self, place: int, gradient: Tensor) -> Tensor:
        """Momentum: the decaying sum of a parameter's gradients."""
        before = self._buffers[place]
        after = gradient.clone() if before is None else before.mul_(self._momentum).add_(gradient)
        self._buffers[place] = after
        return after


def optimizer_for(
    parameters: Sequence[Tensor], training: Training
) -> torch.optim.Optimizer | PlainSgd:
    """A fresh optimiser as the study has it."""
    rate, decay = training.learning_rate, training.weight_decay
    if training.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=rate, weight_decay=decay)
    if parameters[0].device.type == "cpu":
        return PlainSgd(parameters, training)
    return torch.optim.SGD(  # which moves all parameters at once there
        parameters, lr=rate, momentum=training.momentum, weight_decay=decay
    )
