"""The gradient of a linear model's loss, without autograd's record of every step.

A study of a table trains models of a few dozen parameters, hundreds of thousands of steps of them;
keeping a record of each step and going back through it takes longer than the arithmetic. These are
the calls that autograd makes, in its order, so that the result is the same to the last bit.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from erosion.common.tasks.task import DerivedLoss, Loss

_MEAN = 1  # how the loss of a mini-batch is made of its samples', as ATen numbers the ways
_IGNORED = -100  # the target that cross_entropy passes over unless it is told of another
# What autograd calls; torch has no other name for them, and pyproject.toml pins its version.
_forward = torch.ops.aten.nll_loss_forward.default
_backward = torch.ops.aten.nll_loss_backward.default
_through_softmax = torch.ops.aten._log_softmax_backward_data.default  # noqa: SLF001

SetGradient = Callable[[Tensor, Tensor], None]  # given inputs (m, *shape) and their targets


class LinearModel(nn.Sequential):
    """One linear layer on flattened inputs."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(nn.Flatten(), linear)

    def gradient_of(self, loss: Loss) -> SetGradient:
        """What leaves the loss's gradient at the parameters that are trained, over what was there.

        Make it and call it where nothing is recorded for autograd.
        """
        weight, bias = self[1].parameters()
        turned = weight.t()  # a view: it follows the steps
        has_weight, has_bias = weight.requires_grad, bias.requires_grad
        output_gradient = _output_gradient(loss, weight)

        def set_gradient(inputs: Tensor, targets: Tensor) -> None:
            flat = inputs.flatten(1)
            of_outputs = output_gradient(torch.addmm(bias, flat, turned), targets)
            if has_weight:
                weight.grad = of_outputs.t().mm(flat)
            if has_bias:
                bias.grad = of_outputs.sum(0)

        return set_gradient


def is_derived(loss: Loss) -> bool:
    """Its gradient needs nothing of autograd."""
    return loss is cross_entropy or isinstance(loss, DerivedLoss)


def _output_gradient(loss: Loss, like: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss's gradient in outputs (m, k), of their shape, given those and the targets."""
    if isinstance(loss, DerivedLoss):
        return loss.output_gradient
    if loss is not cross_entropy:
        return partial(_by_autograd, loss)
    one = torch.ones((), dtype=like.dtype, device=like.device)  # the gradient of the loss in itself

    def of_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
        logs = torch.log_softmax(outputs, 1)
        _, total = _forward(logs, targets, None, _MEAN, _IGNORED)
        of_logs = _backward(one, logs, targets, None, _MEAN, _IGNORED, total)
        gradient: Tensor = _through_softmax(of_logs, logs, 1, outputs.dtype)
        return gradient

    return of_cross_entropy


def _by_autograd(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    outputs.requires_grad_()
    with torch.enable_grad():
        return torch.autograd.grad(loss(outputs, targets), outputs)[0]
