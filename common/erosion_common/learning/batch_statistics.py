"""Batch normalisation with statistics that each site gathers, and keeps (Li et al. 2021, FedBN)."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm

MOMENTUM = 0.1  # a mini-batch's share in the running statistics, and
EPSILON = 1e-5  # what is added to a variance: both as torch has them
_RUNNING = (".running_mean", ".running_var")


class SiteBatchNorm(nn.Module):
    """torch's batch normalisation of (n, channels, ...), with its running statistics as parameters.

    So they have places in the flat vector, start alike everywhere, and stay at the site as any of
    `own_parameters`. No gradient reaches them: a training step moves them. Two inputs of a channel
    or more make statistics; one alone is normalised by the running ones.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.running_mean = nn.Parameter(torch.zeros(channels))
        self.running_var = nn.Parameter(torch.ones(channels))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return (n, channels, ...) normalised."""
        gathers = self.training and self.running_mean.requires_grad
        gathers = gathers and inputs.numel() > inputs.shape[1]
        mean, variance = self.running_mean.detach(), self.running_var.detach()
        return batch_norm(
            inputs, mean, variance, self.weight, self.bias, gathers, MOMENTUM, EPSILON
        )


def statistics_of(model: nn.Module) -> frozenset[int]:
    """Return the `id` of every parameter that is a running statistic."""
    layers = [module for module in model.modules() if isinstance(module, SiteBatchNorm)]
    return frozenset(id(p) for layer in layers for p in (layer.running_mean, layer.running_var))


def with_statistics(layout: Mapping[str, slice]) -> list[str]:
    """Return the parameters of the layers that have running statistics among them, by name."""
    layers = tuple(n.removesuffix(_RUNNING[0]) for n in layout if n.endswith(_RUNNING[0]))
    return [name for name in layout if name.rpartition(".")[0] in layers]
