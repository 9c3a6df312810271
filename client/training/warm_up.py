"""A training step on made-up patients, so that a site's first round is not its slowest.

Torch's first optimiser of a process imports most of torch (seconds, on a busy machine), and a
device sets itself up at its first use. A round has a deadline, and does not wait for that.
"""

from collections.abc import Sequence
from copy import deepcopy

import torch
from torch import nn

from erosion.common.learning.local_sgd import optimizer_for
from erosion.common.learning.trainable import draws_from, to_training, trained_parameters
from erosion.common.learning.training import Training


def warm_up(model: nn.Module, input_shape: Sequence[int], training: Training) -> None:
    """Forward, backward and a step of a copy of `model`, which itself is left as it is."""
    copy = deepcopy(model)
    to_training(copy)
    device = next(copy.parameters()).device
    with draws_from(0, device):
        outputs = copy(torch.zeros(2, *input_shape, device=device))
    torch.autograd.backward(outputs.square().mean())
    with torch.no_grad():
        optimizer_for(trained_parameters(copy), training).step()
