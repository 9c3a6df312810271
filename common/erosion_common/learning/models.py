"""The models that a study file can name, and their parameters as one flat vector."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from erosion_common.learning.installed import InstalledModel
from erosion_common.learning.networks import (
    Logistic,
    Mlp,
    MnistCnn,
    ModelBase,
    MonaiNetwork,
    Resnet18,
    TorchvisionNetwork,
)
from erosion_common.learning.pretrained import load_pretrained, matches
from erosion_common.learning.trainable import (
    check_same_start,
    check_statistics,
    draws_from,
    flat_parameters,
    freeze,
    load_flat_parameters,
    named_trained_parameters,
    places_of,
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

AnyModel = Logistic | Mlp | MnistCnn | Resnet18 | TorchvisionNetwork | MonaiNetwork | InstalledModel
ModelSettings = Annotated[AnyModel, Field(discriminator="name")]


def build_model(
    settings: ModelBase,
    input_shape: Sequence[int],
    num_outputs: int,
    seed: int = 0,
    weights: Path | None = None,
) -> nn.Module:
    """Return the model as a site trains it; its start depends only on `seed` and the weights.

    `weights`: the folder with that file. Raises ModelError.
    """
    return _checked(settings, input_shape, num_outputs, seed, weights, reads_weights=True)


def check_model(settings: ModelBase, input_shape: Sequence[int], num_outputs: int) -> None:
    """Raise ModelError for what would keep every site from training the model.

    The file of weights is not read.
    """
    _checked(settings, input_shape, num_outputs, 0, None, reads_weights=False)


def _checked(
    settings: ModelBase,
    input_shape: Sequence[int],
    num_outputs: int,
    seed: int,
    weights: Path | None,
    *,
    reads_weights: bool,
) -> nn.Module:
    model = unweighted_model(settings, input_shape, num_outputs, seed)
    what = f"The model {settings.described()}"
    if settings.runs_installed_code:
        check_same_start(model, unweighted_model(settings, input_shape, num_outputs, seed), what)
    if settings.pretrained is not None and reads_weights:
        load_pretrained(model, settings.pretrained, weights)
    if settings.pretrained is None or reads_weights:
        check_statistics(model, what)
    if settings.is_tried_out:
        try_out(model, input_shape, num_outputs, what)
    return model


def unweighted_model(
    settings: ModelBase, input_shape: Sequence[int], num_outputs: int, seed: int = 0
) -> nn.Module:
    """Return the model before its file of weights is read, for its shapes and names."""
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
    """Return the initial parameters: (dim,). The file of weights is read only if some travel.

    Raises ModelError.
    """
    model = unweighted_model(settings, input_shape, num_outputs, seed)
    pretrained = settings.pretrained
    if pretrained is not None and not all(
        matches(name, pretrained.new) for name, _ in named_trained_parameters(model)
    ):
        load_pretrained(model, pretrained, weights)
    return flat_parameters(model)


Shape = tuple[int, ...]
MOST_PARAMETERS = 10**9  # of one model: 4 GB, and training needs several times as much


def parameter_layout(
    settings: ModelBase, input_shape: tuple[int, ...], num_outputs: int
) -> Mapping[str, slice]:
    """Return parameter name -> its place, in the order of `flat_parameters`. Raises ModelError."""
    return MappingProxyType(places_of(parameter_shapes(settings, input_shape, num_outputs)))


def parameter_shapes(
    settings: ModelBase, input_shape: tuple[int, ...], num_outputs: int
) -> Mapping[str, Shape]:
    """Name -> shape of what is trained, in the same order. Raises ModelError."""
    # By the text: the options of a model of one's own cannot be a key.
    return _shapes(type(settings), settings.model_dump_json(), input_shape, num_outputs)


def check_size(settings: ModelBase, input_shape: tuple[int, ...], num_outputs: int) -> None:
    """Raise ValueError where the study asks for a model that no site could train.

    Frozen parameters count, too. Of models that grow with the study alone: others have one size.
    """
    if not settings.grows_with_study:
        return
    with torch.device("meta"):
        model = settings.build(input_shape, num_outputs)
    if (dim := sum(p.numel() for p in model.parameters())) > MOST_PARAMETERS:
        raise ValueError(
            f"the model would have {dim:,} parameters; at most {MOST_PARAMETERS:,} are built, so"
            " make its layers or the inputs smaller"
        )


def num_built(settings: ModelBase, input_shape: tuple[int, ...], num_outputs: int) -> int:
    """Return how many parameters the model has, frozen ones too; no memory is taken for them.

    Only for models with `has_free_shapes`.
    """
    return _built(type(settings), settings.model_dump_json(), input_shape, num_outputs)


def shapes_digest(shapes: Mapping[str, Shape]) -> str:
    """Return SHA-256 of names and shapes: two models with the same can exchange flat vectors."""
    text = json.dumps([[name, list(shape)] for name, shape in shapes.items()])
    return hashlib.sha256(text.encode()).hexdigest()


def model_of_shapes(
    settings: ModelBase, input_shape: tuple[int, ...], num_outputs: int
) -> nn.Module:
    """Return the module for its layers and shapes, without values if possible."""
    # On "meta" no memory is taken, and no random number drawn. Others' code may not bear it.
    with torch.device("meta") if settings.has_free_shapes else nullcontext():
        return unweighted_model(settings, input_shape, num_outputs)


@lru_cache(maxsize=32)
def _built(
    kind: type[ModelBase], settings: str, input_shape: tuple[int, ...], num_outputs: int
) -> int:
    model = model_of_shapes(kind.model_validate_json(settings), input_shape, num_outputs)
    return sum(p.numel() for p in model.parameters())


@lru_cache(maxsize=32)
def _shapes(
    kind: type[ModelBase], settings: str, input_shape: tuple[int, ...], num_outputs: int
) -> Mapping[str, Shape]:
    model_settings = kind.model_validate_json(settings)
    model = model_of_shapes(model_settings, input_shape, num_outputs)
    return MappingProxyType({n: tuple(p.shape) for n, p in named_trained_parameters(model)})
