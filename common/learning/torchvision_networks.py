"""Backbones of torchvision, to start from its published weights."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from erosion.common.learning.model_base import ModelBase
from erosion.common.learning.normalisation import with_group_normalisation
from erosion.common.learning.plain_models import needs_image

Architecture = Literal[
    "resnet18",
    "resnet34",
    "resnet50",
    "densenet121",
    "mobilenet_v3_small",
    "efficientnet_b0",
    "convnext_tiny",
    "vit_b_16",
]


class TorchvisionNetwork(ModelBase):
    """A network as torchvision has it, with names that fit its published weights.

    Networks with batch normalisation need `pretrained`: the statistics of the file stay as they
    are; or `normalisation = "group"` to train them from the beginning. Grey images are shown to
    the network three times, as its three colours.
    """

    is_tried_out: ClassVar[bool] = True

    name: Literal["torchvision"] = "torchvision"
    architecture: Architecture
    normalisation: Literal["as_published", "group"] = "as_published"  # "group": group normalisation
    # in place of batch normalisation, to train a network from the beginning

    def check_task(self, input_shape: Sequence[int]) -> None:
        """Refuse what is not an image."""
        needs_image("torchvision", input_shape)
        if self.architecture == "vit_b_16" and tuple(input_shape[1:]) != (224, 224):
            raise ValueError("architecture = 'vit_b_16' takes images of 224 x 224")

    def build(self, input_shape: Sequence[int], num_outputs: int) -> nn.Module:
        """The network, its last layer with `num_outputs` outputs."""
        from erosion.common.learning.torchvision_import import models

        network: nn.Module = models.get_model(
            self.architecture, weights=None, num_classes=num_outputs
        )
        if input_shape[0] == 1:
            network.register_forward_pre_hook(_as_colours)
        return with_group_normalisation(network) if self.normalisation == "group" else network

    def described(self) -> str:
        """By its architecture."""
        return f"{self.architecture} of torchvision"


def _as_colours(_network: nn.Module, inputs: tuple[Any, ...]) -> tuple[Tensor, ...]:
    (images,) = inputs
    return (images.expand(-1, 3, -1, -1),)
