"""Whether two tensors are the same but for rounding; torch.testing takes seconds to import."""

import torch
from torch import Tensor

_USUAL = {torch.float32: (1.3e-6, 1e-5), torch.float64: (1e-7, 1e-7)}  # as torch.testing has them


def assert_close(
    actual: Tensor, expected: Tensor, *, rtol: float | None = None, atol: float | None = None
) -> None:
    """One shape and type, and every difference within `atol` and `rtol` of the expected value."""
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    if rtol is None or atol is None:
        rtol, atol = _USUAL[actual.dtype]
    gaps = (actual - expected).abs()
    assert bool((gaps <= atol + rtol * expected.abs()).all()), f"{gaps.max()} in {actual}"
