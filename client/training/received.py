"""Checks the tensors of a request before anything is computed from them."""

import torch
from torch import Tensor

from erosion.common.errors import Refusal


def checked_parameters(parameters: Tensor, dim: int) -> Tensor:
    """Parameters of the study's model, (dim,) float32. Raises Refusal."""
    if parameters.shape != (dim,) or parameters.dtype != torch.float32:
        raise Refusal(
            f"The request brings parameters of shape {tuple(parameters.shape)} and type"
            f" {parameters.dtype}; the study's model has {dim} of torch.float32."
        )
    if not bool(torch.isfinite(parameters).all()):
        raise Refusal("The request brings parameters that are not finite; training diverged.")
    return parameters


def checked_payload(name: str, tensor: Tensor, dim: int | None) -> Tensor:
    """A tensor that an algorithm sent. Raises Refusal.

    `dim`: the length of the rows of floating-point numbers; None: any.
    """
    if not tensor.dtype.is_floating_point:
        return tensor
    if dim is not None and (tensor.dim() == 0 or tensor.shape[-1] != dim):
        raise Refusal(
            f"The request brings {name!r} of shape {tuple(tensor.shape)}; its last length must be"
            f" that of the study's model, {dim}."
        )
    if not bool(torch.isfinite(tensor).all()):
        raise Refusal(f"The request brings {name!r} with a value that is not finite.")
    return tensor
