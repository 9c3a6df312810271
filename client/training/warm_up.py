"""A training step on made-up patients, so that a site's first round is not its slowest.

The first optimiser of a process imports most of torch (seconds, on a busy machine), and a device
sets itself up at its first use. A coordinator does not wait for that: a round has a deadline.
"""

from collections.abc import Sequence
from copy import deepcopy

import torch
from torch import nn

from erosion.common.learning.trainable import to_training, trained_parameters


def warm_up(model: nn.Module, input_shape: Sequence[int]) -> None:
    """Forward, backward and a step of a copy of `model`, which itself is left as it is."""
    copy = deepcopy(model)
    to_training(copy)
    device = next(copy.parameters()).device
    with torch.random.fork_rng(devices=[]):  # a layer may draw; nobody else's draws change
        outputs = copy(torch.zeros(2, *input_shape, device=device))
    torch.autograd.backward(outputs.square().mean())
    torch.optim.SGD(trained_parameters(copy), lr=0.1).step()
