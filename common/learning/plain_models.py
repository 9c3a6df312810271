"""The models that come with the program and are made of torch alone, and resnet18."""

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import nn

from erosion.common.learning.linear_gradient import LinearModel
from erosion.common.learning.model_base import ModelBase


class Logistic(ModelBase):
    """A linear model: for classes, multinomial logistic regression."""

    is_stackable: ClassVar[bool] = True
    grows_with_study: ClassVar[bool] = True

    name: Literal["logistic"] = "logistic"
    start_deviation: float = Field(default=0.0, ge=0)  # of the normal, cut off at two deviations,
    # that weights start from; 0: at zero, which nobody's patients prefer. Biases start at 0

    def check_task(self, input_shape: Sequence[int]) -> None:
        """Any input fits: it is flattened."""

    def build(self, input_shape: Sequence[int], num_outputs: int) -> nn.Module:
        """One linear layer to `num_outputs` outputs."""
        linear = nn.Linear(prod(input_shape), num_outputs)
        spread = self.start_deviation
        if spread:
            nn.init.trunc_normal_(linear.weight, std=spread, a=-2 * spread, b=2 * spread)
        else:
            nn.init.zeros_(linear.weight)
        nn.init.zeros_(linear.bias)
        return LinearModel(linear)


class Mlp(ModelBase):
    """A multilayer perceptron with ReLU."""

    is_stackable: ClassVar[bool] = True
    grows_with_study: ClassVar[bool] = True

    name: Literal["mlp"] = "mlp"
    hidden: tuple[Annotated[int, Field(ge=1, le=1_000_000)], ...] = Field(
        default=(32,), min_length=1, max_length=100
    )

    def check_task(self, input_shape: Sequence[int]) -> None:
        """Any input fits: it is flattened."""

    def build(self, input_shape: Sequence[int], num_outputs: int) -> nn.Module:
        """Linear layers with ReLU between them."""
        widths = [prod(input_shape), *self.hidden]
        layers: list[nn.Module] = [nn.Flatten()]
        for width_in, width_out in pairwise(widths):
            layers += [nn.Linear(width_in, width_out), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(widths[-1], num_outputs))


class MnistCnn(ModelBase):
    """The network of Gengler et al. 2020: 356,234 parameters on 1x28x28 images, 10 classes."""

    is_stackable: ClassVar[bool] = True
    grows_with_study: ClassVar[bool] = True

    name: Literal["mnist_cnn"] = "mnist_cnn"
    width: int = Field(default=32, ge=1, le=1024)  # channels of the first convolution; the others
    # have twice and four times as many, and so many hidden units follow

    def check_task(self, input_shape: Sequence[int]) -> None:
        """Refuse what is not an image."""
        needs_image("mnist_cnn", input_shape)

    def build(self, input_shape: Sequence[int], num_outputs: int) -> nn.Module:
        """Three 3x3 convolutions of stride 2 and padding 1, then a hidden layer."""
        channels, height, width = input_shape
        widths = [channels, self.width, 2 * self.width, 4 * self.width]
        layers: list[nn.Module] = []
        for channels_in, channels_out in pairwise(widths):
            layers += [nn.Conv2d(channels_in, channels_out, 3, stride=2, padding=1), nn.ReLU()]
            height, width = (height + 1) // 2, (width + 1) // 2
        return nn.Sequential(
            *layers,
            nn.Flatten(),
            nn.Linear(widths[-1] * height * width, widths[-1]),
            nn.ReLU(),
            nn.Linear(widths[-1], num_outputs),
        )


class Resnet18(ModelBase):
    """torchvision's resnet18 with group normalisation: no running statistics to average."""

    is_stackable: ClassVar[bool] = True

    name: Literal["resnet18"] = "resnet18"

    def check_task(self, input_shape: Sequence[int]) -> None:
        """Refuse what is not an image."""
        needs_image("resnet18", input_shape)

    def build(self, input_shape: Sequence[int], num_outputs: int) -> nn.Module:
        """11.2 million parameters; the first convolution takes one channel for grey images."""
        from erosion.common.learning.torchvision_import import models

        network: nn.Module = models.resnet18(
            num_classes=num_outputs, norm_layer=lambda channels: nn.GroupNorm(32, channels)
        )
        if input_shape[0] != 3:
            network.conv1 = nn.Conv2d(input_shape[0], 64, 7, stride=2, padding=3, bias=False)
        return network


def needs_image(name: str, input_shape: Sequence[int]) -> None:
    """Raise ValueError for a table, or a volume."""
    if len(input_shape) == 1:
        raise ValueError(
            f"model.name = {name!r} needs an image task; for a table use 'logistic' or 'mlp'"
        )
    if len(input_shape) != 3:
        raise ValueError(
            f"model.name = {name!r} is for images, and the study has volumes; use 'logistic',"
            " 'mlp', 'monai', or a model of your own ('installed')"
        )
