"""The models that a study file can name, and their parameters as one flat vector."""

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from erosion.common.settings.base import Settings


class Logistic(Settings):
    """A linear model, started at zero: for classes, multinomial logistic regression."""

    name: Literal["logistic"] = "logistic"

    def check_task(self, input_shape: Sequence[int]) -> None:
        """Any input fits: it is flattened."""

    def build(self, input_shape: Sequence[int], num_outputs: int) -> nn.Module:
        """One linear layer to `num_outputs` outputs."""
        linear = nn.Linear(prod(input_shape), num_outputs)
        nn.init.zeros_(linear.weight)
        nn.init.zeros_(linear.bias)
        return nn.Sequential(nn.Flatten(), linear)


class Mlp(Settings):
    """A multilayer perceptron with ReLU."""

    name: Literal["mlp"] = "mlp"
    hidden: tuple[Annotated[int, Field(ge=1)], ...] = Field(default=(32,), min_length=1)

    def check_task(self, input_shape: Sequence[int]) -> None:
        """Any input fits: it is flattened."""

    def build(self, input_shape: Sequence[int], num_outputs: int) -> nn.Module:
        """Linear layers with ReLU between them."""
        widths = [prod(input_shape), *self.hidden]
        layers: list[nn.Module] = [nn.Flatten()]
        for width_in, width_out in pairwise(widths):
            layers += [nn.Linear(width_in, width_out), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(widths[-1], num_outputs))


class MnistCnn(Settings):
    """The network of Gengler et al. 2020: 356,234 parameters on 1x28x28 images, 10 classes."""

    name: Literal["mnist_cnn"] = "mnist_cnn"

    def check_task(self, input_shape: Sequence[int]) -> None:
        """Refuse what is not an image."""
        _needs_image("mnist_cnn", input_shape)

    def build(self, input_shape: Sequence[int], num_outputs: int) -> nn.Module:
        """Three 3x3 convolutions of stride 2 and padding 1, then 128 hidden units."""
        channels, height, width = input_shape
        layers: list[nn.Module] = []
        for channels_in, channels_out in ((channels, 32), (32, 64), (64, 128)):
            layers += [nn.Conv2d(channels_in, channels_out, 3, stride=2, padding=1), nn.ReLU()]
            height, width = (height + 1) // 2, (width + 1) // 2
        return nn.Sequential(
            *layers,
            nn.Flatten(),
            nn.Linear(128 * height * width, 128),
            nn.ReLU(),
            nn.Linear(128, num_outputs),
        )


class Resnet18(Settings):
    """torchvision's resnet18 with group normalisation: no running statistics to average."""

    name: Literal["resnet18"] = "resnet18"

    def check_task(self, input_shape: Sequence[int]) -> None:
        """Refuse what is not an image."""
        _needs_image("resnet18", input_shape)

    def build(self, input_shape: Sequence[int], num_outputs: int) -> nn.Module:
        """11.2 million parameters; the first convolution takes one channel for grey images."""
        from erosion.common.learning.torchvision_import import models

        network: nn.Module = models.resnet18(
            num_classes=num_outputs, norm_layer=lambda channels: nn.GroupNorm(32, channels)
        )
        if input_shape[0] != 3:
            network.conv1 = nn.Conv2d(input_shape[0], 64, 7, stride=2, padding=3, bias=False)
        return network


def _needs_image(name: str, input_shape: Sequence[int]) -> None:
    if len(input_shape) != 3:
        raise ValueError(
            f"model.name = {name!r} needs an image task; for a table use 'logistic' or 'mlp'"
        )


AnyModel = Logistic | Mlp | MnistCnn | Resnet18
ModelSettings = Annotated[AnyModel, Field(discriminator="name")]


def build_model(
    settings: AnyModel, input_shape: Sequence[int], num_outputs: int, seed: int = 0
) -> nn.Module:
    """The model with its starting parameters, which depend on `seed` alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return settings.build(input_shape, num_outputs)


def flat_parameters(model: nn.Module) -> Tensor:
    """A copy of all parameters, concatenated in `model.parameters()` order: (dim,) float32."""
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def load_flat_parameters(model: nn.Module, vector: Tensor) -> None:
    """Copy `vector` (dim,) into the model; raises ValueError where the length does not fit."""
    dim = sum(parameter.numel() for parameter in model.parameters())
    if vector.shape != (dim,):
        raise ValueError(f"{tuple(vector.shape)} parameters for a model of {dim}")
    offset = 0
    with torch.no_grad():
        for parameter in model.parameters():
            count = parameter.numel()
            parameter.copy_(vector[offset : offset + count].view_as(parameter))
            offset += count
