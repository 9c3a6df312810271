"""Draws of layers, such as dropout and first weights, from a seed.

`torch.manual_seed` takes a millisecond where torch could use a GPU: it formats the stack of whoever
calls it, once for each kind of GPU. That is longer than a small hospital trains.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

CPU = torch.device("cpu")


@contextmanager
def draws_from(seed: int, device: torch.device = CPU) -> Iterator[None]:
    """Within, layers on `device` draw from `seed`; afterwards all draw as if nothing had been."""
    generator = torch.default_generator
    before = generator.get_state()
    on_gpu = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    try:
        generator.manual_seed(seed)
        if on_gpu is not None:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield
    finally:
        generator.set_state(before)
        if on_gpu is not None:
            torch.cuda.set_rng_state(on_gpu, device)
