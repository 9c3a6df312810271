"""The gradient of a linear model's loss, without autograd's record of every step.

A study of a table trains models of a few dozen parameters, hundreds of thousands of steps of them;
keeping a record of each step and going back through it takes longer than the arithmetic. These are
the calls that autograd makes, in its order, so that the result is the same to the last bit.
"""

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


class LinearModel(nn.Sequential):
    """One linear layer on flattened inputs."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(nn.Flatten(), linear)

    def set_gradient(self, inputs: Tensor, targets: Tensor, loss: Loss) -> None:
        """Leave the gradient of the loss of inputs (m, *shape) at the parameters that are trained.

        What was there is overwritten. Call it where nothing is recorded for autograd.
        """
        weight, bias = self[1].parameters()
        flat = inputs.flatten(1)
        of_outputs = _output_gradient(torch.addmm(bias, flat, weight.t()), targets, loss)
        if weight.requires_grad:
            weight.grad = of_outputs.t().mm(flat)
        if bias.requires_grad:
            bias.grad = of_outputs.sum(0)


def _output_gradient(outputs: Tensor, targets: Tensor, loss: Loss) -> Tensor:
    """The loss's gradient in outputs (m, k), of their shape."""
    if isinstance(loss, DerivedLoss):
        return loss.output_gradient(outputs, targets)
    if loss is not cross_entropy:
        outputs.requires_grad_()
        with torch.enable_grad():
            return torch.autograd.grad(loss(outputs, targets), outputs)[0]
    logs = torch.log_softmax(outputs, 1)
    _, total = _forward(logs, targets, None, _MEAN, _IGNORED)
    one = torch.ones_like(total)
    of_logs = _backward(one, logs, targets, None, _MEAN, _IGNORED, total)
    gradient: Tensor = _through_softmax(of_logs, logs, 1, outputs.dtype)
    return gradient
