"""What a site sends for evidence erosion: the mean of two halves' models, and its noise.

A ClientApp that calls it needs no torch.
"""

from collections.abc import Collection

import numpy as np
from flwr.app import Array, ArrayRecord

# What PyTorch's batch normalisation keeps in addition to parameters: no gradient moves it, and in
# the distance between two updates it drowns everything else.
BATCH_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def is_no_parameter(name: str, buffers: Collection[str] | None) -> bool:
    """Return whether an array is left out of distances. `buffers` as in the strategy."""
    return name.rpartition(".")[2] in BATCH_STATISTICS if buffers is None else name in buffers


def mean_and_noise(
    first: ArrayRecord, second: ArrayRecord, buffers: Collection[str] | None = None
) -> tuple[ArrayRecord, float]:
    """Return the mean of two models, which is what to send, and the noise of that mean.

    Both were trained from the received arrays, each on a random half of the patients. The noise,
    |first - second|^2 / 4 over the parameters, goes into the reply's metrics as "noise". `buffers`
    as in the strategy. Raises ValueError where the two are different models.
    """
    forms = [[(name, tuple(each.shape)) for name, each in half.items()] for half in (first, second)]
    if forms[0] != forms[1]:
        raise ValueError("the two halves have different models")
    mean, noise = {}, 0.0
    for name in first:
        one, other = first[name].numpy(), second[name].numpy()
        if one.dtype.kind != "f":
            mean[name] = Array(np.asarray(np.maximum(one, other)))  # a counter
            continue
        total = np.add(one, other, dtype=np.result_type(one, np.float32))  # of float16, too
        mean[name] = Array(np.asarray(total / 2, one.dtype))
        if not is_no_parameter(name, buffers):
            noise += float(np.square(one.astype(np.float64) - other).sum()) / 4
    return ArrayRecord(mean), noise
