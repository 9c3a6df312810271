"""The place of each named parameter of a model in the flat vector of all parameters."""

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

import torch

from erosion.common.learning.models import AnyModel


@lru_cache(maxsize=32)
def parameter_layout(
    settings: AnyModel, input_shape: tuple[int, ...], num_outputs: int
) -> Mapping[str, slice]:
    """Parameter name -> its place, in the order of `flat_parameters`."""
    with torch.device("meta"):  # shapes alone: no memory, and no random number is drawn
        model = settings.build(input_shape, num_outputs)
    layout: dict[str, slice] = {}
    offset = 0
    for name, parameter in model.named_parameters():
        layout[name] = slice(offset, offset + parameter.numel())
        offset += parameter.numel()
    return MappingProxyType(layout)
