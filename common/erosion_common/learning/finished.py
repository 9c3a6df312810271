"""A model with several last layers and their weights: what a finish makes at the user's site."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from erosion_common.learning.local_sgd import outputs_of, predictions_of
from erosion_common.learning.trainable import load_flat_parameters, named_trained_parameters
from erosion_common.tasks.task import Task

MOST_LAYERS = 52  # that a finish averages
LAYERS = "layers"  # what a request encloses them as


@dataclass(frozen=True, slots=True, eq=False)
class Finished:
    """One network, and the last layers that take the place of its own in turn."""

    parameters: Tensor  # (dim,) float32
    layers: Tensor  # (m, 1 + q) float32: a weight, then what replaces the last q parameters

    @property
    def shares(self) -> Tensor:
        """The weights with a sum of 1: (m,) float64."""
        weights = self.layers[:, 0].double()
        return weights / weights.sum()

    def mean(self) -> Tensor:
        """Return the parameters with the mean last layer: (dim,)."""
        found, width = self.parameters.clone(), self.layers.shape[1] - 1
        found[-width:] = (self.shares[:, None] * self.layers[:, 1:].double()).sum(dim=0).float()
        return found


Predictor = Tensor | Finished  # (dim,); (m, dim) for the mean of m models' predictions


def layer_size(layout: Mapping[str, slice]) -> int:
    """Return the parameters of the last layer; 0 where the last two are not its weight and bias."""
    *_, weight, bias = ["", *layout]
    if not bias.endswith("bias") or weight != f"{bias.removesuffix('bias')}weight":
        return 0
    return int(layout[bias].stop - layout[weight].start)


def last_layer(model: nn.Module) -> nn.Linear | None:
    """Return the layer of the last two parameters; None where it is not linear."""
    *_, last = (name for name, _ in named_trained_parameters(model))
    layer = model.get_submodule(last.rpartition(".")[0])
    return layer if isinstance(layer, nn.Linear) else None


def features_of(model: nn.Module, parameters: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return what the last layer takes, and the outputs: (n, width) and (n, k), float64."""
    layer = last_layer(model)
    assert layer is not None
    seen: list[Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _layer, taken: seen.append(taken[0]))
    try:
        load_flat_parameters(model, parameters)
        outputs = outputs_of(model, inputs)
    finally:
        hook.remove()
    return torch.cat(seen).double(), outputs


def predicted_by(task: Task, model: nn.Module, predictor: Predictor, inputs: Tensor) -> Tensor:
    """Return predictions (n, k): with parameters, the mean over rows, or over last layers."""
    if isinstance(predictor, Tensor):
        return predictions_of(task, model, predictor, inputs)
    features, outputs = features_of(model, predictor.parameters, inputs)
    width = features.shape[1] * outputs.shape[1]
    found = torch.zeros((), dtype=torch.float64)
    for share, layer in zip(predictor.shares, predictor.layers[:, 1:].double(), strict=True):
        weight, bias = layer[:width].reshape(-1, features.shape[1]), layer[width:]
        found = found + share * task.predictions(features @ weight.T + bias)
    return found


def problem_with_layers_of(found: Tensor, layout: Mapping[str, slice]) -> str | None:
    """Return why these are no last layers of such a model, or None."""
    size = layer_size(layout)
    if found.dtype != torch.float32 or found.dim() != 2 or found.shape[1] != 1 + size:
        return f"are {found.dtype} of shape {tuple(found.shape)}"
    if not 1 <= len(found) <= MOST_LAYERS or not bool(torch.isfinite(found).all()):
        return "are too many, or not finite"
    if bool((found[:, 0] < 0).any()) or not float(found[:, 0].sum()) > 0:
        return "have no weights"
    return None
