"""The sum of every patient's own gradient, each cut to a length that no patient exceeds.

Each row's gradient is taken by itself (`torch.func.vmap`), so no layer can mix patients; the rows
of one patient are added up before the sum is cut.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from erosion.common.errors import ModelError
from erosion.common.learning.models import load_flat_parameters
from erosion.common.learning.trainable import draws_from, named_trained_parameters, to_training
from erosion.common.tasks.task import Loss

_NUMBERS_AT_ONCE = 1 << 23  # of single gradients in memory


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """What a hospital trains on, row by row."""

    inputs: Tensor  # (n, *shape)
    targets: Tensor  # (n, ...)
    patients: Tensor  # (n,) int64: rows with the same number are of one patient


def problem_with_layers(model: nn.Module) -> str | None:
    """The layer that looks at several patients at once, or None."""
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and module.running_mean is None:
            return (
                f"the layer {name} ({type(module).__name__}) normalises each patient by the others"
                " of the mini-batch, so no patient has a gradient of its own; use GroupNorm or"
                " LayerNorm"
            )
    return None


def clipped_sum(
    model: nn.Module, start: Tensor, rows: Rows, loss: Loss, *, clip_norm: float, seed: int
) -> Tensor:
    """The sum over patients of their gradients at `start` (dim,), cut to `clip_norm`: float64.

    `seed`: of what a layer draws (dropout). A patient whose gradient is not finite counts as 0.
    Raises ModelError for a model that cannot be differentiated patient by patient.
    """
    load_flat_parameters(model, start)
    to_training(model)
    parameters = {name: p.detach() for name, p in named_trained_parameters(model)}

    def loss_of(values: dict[str, Tensor], row: Tensor, target: Tensor) -> Tensor:
        outputs = functional_call(model, values, (row.unsqueeze(0),))
        return loss(outputs, target.unsqueeze(0))

    gradients = vmap(grad(loss_of), in_dims=(None, 0, 0), randomness="different")

    def of_rows(places: Tensor) -> Tensor:
        found: dict[str, Tensor] = gradients(parameters, rows.inputs[places], rows.targets[places])
        return torch.cat([found[name].flatten(1) for name in parameters], dim=1).double()

    total = torch.zeros(len(start), dtype=torch.float64, device=start.device)
    with draws_from(seed, start.device):
        try:
            for of_patients in _by_patient(rows.patients, of_rows, len(start)):
                total += _cut(of_patients, clip_norm).sum(dim=0)
        except (RuntimeError, NotImplementedError, ValueError) as problem:
            reason = (str(problem).strip().splitlines() or [""])[0][:300]
            raise ModelError(
                "The model cannot be differentiated patient by patient, which [privacy] needs"
                f" ({type(problem).__name__}: {reason}). Use another model, or leave [privacy] out."
            ) from None
    return total


def _by_patient(
    patients: Tensor, of_rows: Callable[[Tensor], Tensor], dim: int
) -> Iterator[Tensor]:
    """The gradients of some patients at a time: (patients, dim)."""
    if not len(patients):  # a half that chance left empty
        return
    at_once = max(1, _NUMBERS_AT_ONCE // dim)
    order = torch.argsort(patients, stable=True)
    _, counts = torch.unique_consecutive(patients[order], return_counts=True)
    if bool((counts == 1).all()):
        yield from map(of_rows, torch.split(order, at_once))
        return
    for rows in torch.split(order, counts.tolist()):
        parts = [of_rows(part).sum(dim=0) for part in torch.split(rows, at_once)]
        yield torch.stack(parts).sum(dim=0, keepdim=True)


def _cut(gradients: Tensor, clip_norm: float) -> Tensor:
    """Each row (dim,) no longer than `clip_norm`, in its direction."""
    lengths = gradients.norm(dim=1, keepdim=True)
    finite = torch.where(lengths.isfinite(), gradients, 0.0)
    kept: Tensor = clip_norm / lengths.clamp(min=clip_norm)
    return finite * kept.nan_to_num(nan=0.0)
