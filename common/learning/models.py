"""The models that a study file can name, and their parameters as one flat vector."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from erosion.common.learning.installed import Installed
from erosion.common.learning.layer_draws import draws_from
from erosion.common.learning.model_base import ModelBase
from erosion.common.learning.monai_networks import MonaiNetwork
from erosion.common.learning.plain_models import Logistic, Mlp, MnistCnn, Resnet18
from erosion.common.learning.pretrained import load_pretrained, matches
from erosion.common.learning.torchvision_networks import TorchvisionNetwork
from erosion.common.learning.trainable import (
    check_same_start,
    check_statistics,
    freeze,
    named_trained_parameters,
    trained_parameters,
    try_out,
)

__all__ = [
    "AnyModel",
    "Logistic",
    "Mlp",
    "MnistCnn",
    "ModelSettings",
    "Resnet18",
    "build_model",
    "check_model",
    "first_parameters",
    "flat_parameters",
    "load_flat_parameters",
    "unweighted_model",
]

AnyModel = Logistic | Mlp | MnistCnn | Resnet18 | TorchvisionNetwork | MonaiNetwork | Installed
ModelSettings = Annotated[AnyModel, Field(discriminator="name")]


def build_model(
    settings: ModelBase,
    input_shape: Sequence[int],
    num_outputs: int,
    seed: int = 0,
    weights: Path | None = None,
) -> nn.Module:
    """The model as a site trains it: its start depends on `seed` and its file of weights alone.

    `weights`: the folder with that file. Raises ModelError.
    """
    model = unweighted_model(settings, input_shape, num_outputs, seed)
    what = f"The model {settings.described()}"
    if settings.runs_installed_code:
        check_same_start(model, unweighted_model(settings, input_shape, num_outputs, seed), what)
    if settings.pretrained is not None:
        load_pretrained(model, settings.pretrained, weights)
    check_statistics(model, what)
    if settings.is_tried_out:
        try_out(model, input_shape, num_outputs, what)
    return model


def check_model(settings: ModelBase, input_shape: Sequence[int], num_outputs: int) -> None:
    """Raise ModelError for what would keep every site from training the model.

    The file of weights is not read.
    """
    model = unweighted_model(settings, input_shape, num_outputs)
    what = f"The model {settings.described()}"
    if settings.runs_installed_code:
        check_same_start(model, unweighted_model(settings, input_shape, num_outputs), what)
    if settings.pretrained is None:
        check_statistics(model, what)
    if settings.is_tried_out:
        try_out(model, input_shape, num_outputs, what)


def unweighted_model(
    settings: ModelBase, input_shape: Sequence[int], num_outputs: int, seed: int = 0
) -> nn.Module:
    """The same before its file of weights is read: what shapes and names are taken from."""
    with draws_from(seed):
        model = settings.build(input_shape, num_outputs)
    freeze(model, settings.frozen)
    return model


def first_parameters(
    settings: ModelBase,
    input_shape: Sequence[int],
    num_outputs: int,
    seed: int,
    weights: Path | None = None,
) -> Tensor:
    """Where training starts: (dim,). The file of weights is read only if some of them travel.

    Raises ModelError.
    """
    model = unweighted_model(settings, input_shape, num_outputs, seed)
    pretrained = settings.pretrained
    if pretrained is not None and not all(
        matches(name, pretrained.new) for name, _ in named_trained_parameters(model)
    ):
        load_pretrained(model, pretrained, weights)
    return flat_parameters(model)


def flat_parameters(model: nn.Module) -> Tensor:
    """A copy of all that is trained, concatenated in `model.parameters()` order: (dim,) float32."""
    return nn.utils.parameters_to_vector(trained_parameters(model)).detach().clone()


def load_flat_parameters(model: nn.Module, vector: Tensor) -> None:
    """Copy `vector` (dim,) into the model; raises ValueError where the length does not fit."""
    trained = trained_parameters(model)
    dim = sum(parameter.numel() for parameter in trained)
    if vector.shape != (dim,):
        raise ValueError(f"{tuple(vector.shape)} parameters for a model of {dim}")
    offset = 0
    with torch.no_grad():
        for parameter in trained:
            count = parameter.numel()
            parameter.copy_(vector[offset : offset + count].view_as(parameter))
            offset += count
