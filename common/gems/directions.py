"""Random directions along which a ball is measured. They are drawn once, not anew per radius."""

import torch
from torch import Tensor


def directions(count: int, dim: int, generator: torch.Generator) -> Tensor:
    """Unit vectors, uniform on the sphere: (count, dim) float32."""
    drawn = torch.randn(count, dim, generator=generator)
    lengths: Tensor = drawn.norm(dim=1, keepdim=True)
    return drawn / lengths.clamp(min=1e-30)
