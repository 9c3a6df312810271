"""The place of each trained parameter of a model in the flat vector of all that is trained."""

import hashlib
import json
from collections.abc import Mapping
from contextlib import nullcontext
from functools import lru_cache
from math import prod
from types import MappingProxyType

import torch
from torch import nn

from erosion.common.learning.model_base import ModelBase
from erosion.common.learning.models import unweighted_model
from erosion.common.learning.trainable import named_trained_parameters

Shape = tuple[int, ...]
MOST_PARAMETERS = 10**9  # of one model: 4 GB, and training needs several times as much


def parameter_layout(
    settings: ModelBase, input_shape: tuple[int, ...], num_outputs: int
) -> Mapping[str, slice]:
    """Parameter name -> its place, in the order of `flat_parameters`. Raises ModelError."""
    layout: dict[str, slice] = {}
    offset = 0
    for name, shape in parameter_shapes(settings, input_shape, num_outputs).items():
        layout[name] = slice(offset, offset + prod(shape))
        offset += prod(shape)
    return MappingProxyType(layout)


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
    """How many parameters the model has, frozen ones too; no memory is taken for them.

    Only of models whose shapes can be had so (`has_free_shapes`).
    """
    return _built(type(settings), settings.model_dump_json(), input_shape, num_outputs)


def shapes_digest(shapes: Mapping[str, Shape]) -> str:
    """SHA-256 of names and shapes: two models with the same can exchange flat vectors."""
    text = json.dumps([[name, list(shape)] for name, shape in shapes.items()])
    return hashlib.sha256(text.encode()).hexdigest()


def model_of_shapes(
    settings: ModelBase, input_shape: tuple[int, ...], num_outputs: int
) -> nn.Module:
    """The module for its layers and shapes, without values where that can be had."""
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
