"""The interface of every model: what starts from a file, and what never travels."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from torch import nn

from erosion.common.learning.pretrained import Pretrained
from erosion.common.settings.base import Settings


class ModelBase(Settings, ABC):
    """One kind of model, as `[model]` of a study file describes it."""

    runs_installed_code: ClassVar[bool] = False  # of somebody else's package
    is_tried_out: ClassVar[bool] = False  # on made-up patients: whether it fits the study's inputs
    has_free_shapes: ClassVar[bool] = True  # it can be built without memory, to know its shapes
    grows_with_study: ClassVar[bool] = False  # with the inputs' shape, or with widths of its own

    is_stackable: ClassVar[bool] = False  # it can be trained as one of a stack (`stacked_sgd`): no
    # layer draws, or looks at several patients at once

    name: str
    pretrained: Pretrained | None = None  # where its weights start; None: drawn from study.seed
    frozen: tuple[str, ...] = ()  # parameters that stay as they start and never travel: names, or
    # patterns with *

    @abstractmethod
    def check_task(self, input_shape: Sequence[int]) -> None:
        """Raise ValueError where the model cannot take such inputs."""

    @abstractmethod
    def build(self, input_shape: Sequence[int], num_outputs: int) -> nn.Module:
        """The module, with parameters drawn from torch's global generator."""

    def described(self) -> str:
        """For people: the model's name."""
        return self.name
