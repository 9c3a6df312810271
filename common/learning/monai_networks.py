"""Networks of MONAI for images and volumes (the extra `monai`)."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any, ClassVar, Literal

from torch import nn

from erosion.common.errors import ModelError
from erosion.common.learning.model_base import ModelBase
from erosion.common.learning.normalisation import with_group_normalisation
from erosion.common.support.software import install_command


class MonaiNetwork(ModelBase):
    """A network of MONAI in two or three dimensions, by the study's images.

    Group normalisation has no statistics to average; "batch" is for weights that have them.
    """

    has_free_shapes: ClassVar[bool] = False
    is_tried_out: ClassVar[bool] = True

    name: Literal["monai"] = "monai"
    network: Literal["resnet10", "resnet18", "densenet121"] = "resnet10"
    normalisation: Literal["group", "batch"] = "group"

    def check_task(self, input_shape: Sequence[int]) -> None:
        """Refuse a table."""
        if len(input_shape) not in (3, 4):
            raise ValueError(
                "model.name = 'monai' needs images or volumes; for a table use 'logistic' or 'mlp'"
            )

    def build(self, input_shape: Sequence[int], num_outputs: int) -> nn.Module:
        """The network; raises ModelError where MONAI is not installed."""
        try:
            nets: Any = import_module("monai.networks.nets")  # which re-exports without saying so
        except ModuleNotFoundError:
            raise ModelError(
                "model.name = 'monai' needs MONAI, which is not installed. Run:"
                f" {install_command('monai')}"
            ) from None
        channels, dimensions = input_shape[0], len(input_shape) - 1
        network: nn.Module
        if self.network == "densenet121":
            network = nets.DenseNet121(
                spatial_dims=dimensions, in_channels=channels, out_channels=num_outputs
            )
        else:
            make = {"resnet10": nets.resnet10, "resnet18": nets.resnet18}[self.network]
            network = make(
                spatial_dims=dimensions, n_input_channels=channels, num_classes=num_outputs
            )
        # Not by MONAI's own `norm`, which its residual networks do not hand on to their blocks.
        return with_group_normalisation(network) if self.normalisation == "group" else network

    def described(self) -> str:
        """By its network."""
        return f"{self.network} of MONAI"
