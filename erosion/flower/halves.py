"""For ClientApps of evidence erosion: two models trained on two halves of the patients."""

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from erosion.flower.arrangement import BATCH_STATISTICS


def mean_and_noise(
    first: Mapping[str, Tensor],
    second: Mapping[str, Tensor],
    buffers: Collection[str] | None = None,
) -> tuple[dict[str, Tensor], float]:
    """The mean of two state dicts, which is what to send, and the noise of that mean.

    Both were trained from the received arrays, each on a random half of the patients. The noise,
    |first - second|^2 / 4 over the parameters, goes into the reply's metrics as "noise". `buffers`
    as in the strategy.
    """
    if first.keys() != second.keys():
        raise ValueError("the two halves have different models")
    mean, noise = {}, 0.0
    for name, one in first.items():
        other = second[name]
        if not one.dtype.is_floating_point:
            mean[name] = torch.maximum(one, other)  # a counter
            continue
        mean[name] = (one + other) / 2
        is_buffer = (
            name.rpartition(".")[2] in BATCH_STATISTICS if buffers is None else name in buffers
        )
        if not is_buffer:
            noise += float((one.double() - other.double()).square().sum()) / 4
    return mean, noise
