"""The models that come with the program: of torch alone, of torchvision, and of MONAI."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import pairwise
from math import gcd, prod
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from erosion_common.errors import ModelError
from erosion_common.learning.batch_statistics import SiteBatchNorm
from erosion_common.learning.local_sgd import LinearModel, NetworkEnsemble
from erosion_common.learning.pretrained import Pretrained
from erosion_common.settings.base import Settings
from erosion_common.support.software import install_command

_GROUP = '`"group"`: by groups of channels.'
_SITE = (
    '`"site"`: batch normalisation, each site by its own patients: arms then keep these layers at'
    " the sites, as `fedbn` does."
)


class ModelBase(Settings, ABC):
    """One kind of model, as `[model]` of a study file describes it."""

    runs_installed_code: ClassVar[bool] = False  # of somebody else's package
    is_tried_out: ClassVar[bool] = False  # on made-up patients: whether it fits the study's inputs
    has_free_shapes: ClassVar[bool] = True  # it can be built without memory, to know its shapes
    grows_with_study: ClassVar[bool] = False  # with the inputs' shape, or with widths in the study

    is_for_images: ClassVar[bool] = False  # in two dimensions; others flatten any input

    name: str = Field(description="The kind of model.")
    pretrained: Pretrained | None = Field(
        default=None, description="A file that its weights start from. Left out: drawn from `seed`."
    )
    frozen: tuple[str, ...] = Field(
        default=(),
        description="Parameters that stay as they start and never travel: names, or patterns "
        "with *.",
    )

    @property
    def gathers_statistics(self) -> bool:
        """Return whether it may have layers with statistics that each site gathers."""
        return getattr(self, "normalisation", "") == "site"

    def check_task(self, input_shape: Sequence[int]) -> None:
        """Raise ValueError where the model cannot take such inputs."""
        if self.is_for_images:
            needs_image(self.name, input_shape)

    @abstractmethod
    def build(self, input_shape: Sequence[int], num_outputs: int) -> nn.Module:
        """Return the module, with parameters drawn from torch's global generator."""

    def described(self) -> str:
        """Return the model's name for people."""
        return self.name


class Logistic(ModelBase):
    """A linear model: for classes, multinomial logistic regression."""

    grows_with_study: ClassVar[bool] = True

    name: Literal["logistic"] = "logistic"
    start_deviation: float = Field(
        default=0.0,
        ge=0,
        description="Weights start from a normal of this deviation, cut off at two deviations, "
        "drawn from `seed`; 0: at zero. Biases start at 0.",
    )

    def build(self, input_shape: Sequence[int], num_outputs: int) -> nn.Module:
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

    grows_with_study: ClassVar[bool] = True

    name: Literal["mlp"] = "mlp"
    hidden: tuple[Annotated[int, Field(ge=1, le=1_000_000)], ...] = Field(
        default=(32,), min_length=1, max_length=100, description="Neurons of each hidden layer."
    )
    normalisation: Literal["none", "site"] = Field(
        default="none", description=f"How its hidden layers are normalised, before ReLU. {_SITE}"
    )

    ensemble_of: int = Field(
        default=1,
        ge=1,
        le=10,
        description="How many networks: each has its own start and is trained on its own loss, "
        "and the mean of their outputs predicts.",
    )

    def build(self, input_shape: Sequence[int], num_outputs: int) -> nn.Module:
        networks = [
            (self._body(prod(input_shape)), nn.Linear(self.hidden[-1], num_outputs))
            for _ in range(self.ensemble_of)
        ]
        if len(networks) == 1:
            ((body, head),) = networks
            return nn.Sequential(*body, head)
        return NetworkEnsemble(
            [nn.Sequential(*body) for body, _ in networks], [head for _, head in networks]
        )

    def _body(self, inputs: int) -> list[nn.Module]:
        widths = [inputs, *self.hidden]
        layers: list[nn.Module] = [nn.Flatten()]
        for width_in, width_out in pairwise(widths):
            normal = [SiteBatchNorm(width_out)] if self.gathers_statistics else []
            layers += [nn.Linear(width_in, width_out), *normal, nn.ReLU()]
        return layers


class MnistCnn(ModelBase):
    """The network of Gengler et al. 2020: 356,234 parameters on 1x28x28 images, 10 classes."""

    grows_with_study: ClassVar[bool] = True

    is_for_images: ClassVar[bool] = True
    name: Literal["mnist_cnn"] = "mnist_cnn"
    width: int = Field(
        default=32,
        ge=1,
        le=1024,
        description="Channels of the first convolution; the others have twice and four times as "
        "many, and the hidden layer has four times as many units.",
    )

    def build(self, input_shape: Sequence[int], num_outputs: int) -> nn.Module:
        """Return three 3x3 convolutions of stride 2 and padding 1, then a hidden layer."""
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

    is_for_images: ClassVar[bool] = True
    name: Literal["resnet18"] = "resnet18"

    def build(self, input_shape: Sequence[int], num_outputs: int) -> nn.Module:
        """Build 11.2 million parameters, with one input channel for grey images."""
        from erosion_common.learning.torchvision_import import models

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


MOST_GROUPS = 8


def normalised(model: nn.Module, how: str) -> nn.Module:
    """Replace the model's batch normalisations in place, under their names, and return it.

    `how`: "group" or "site"; with anything else they stay.
    """
    if how not in _INSTEAD:
        return model
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, _BatchNorm):
                setattr(module, name, _INSTEAD[how](child.num_features))
    return model


_INSTEAD: dict[str, Callable[[int], nn.Module]] = {
    "group": lambda channels: nn.GroupNorm(gcd(MOST_GROUPS, channels), channels),
    "site": SiteBatchNorm,
}


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
    are; or `normalisation` to train them from the beginning. Grey images are shown to
    the network three times, as its three colours.
    """

    is_tried_out: ClassVar[bool] = True

    is_for_images: ClassVar[bool] = True
    name: Literal["torchvision"] = "torchvision"
    architecture: Architecture = Field(description="Which of torchvision's networks.")
    normalisation: Literal["as_published", "group", "site"] = Field(
        default="as_published",
        description=f'`"as_published"`: as in a file of weights. {_GROUP} {_SITE}',
    )

    def check_task(self, input_shape: Sequence[int]) -> None:
        super().check_task(input_shape)
        if self.architecture == "vit_b_16" and tuple(input_shape[1:]) != (224, 224):
            raise ValueError("architecture = 'vit_b_16' takes images of 224 x 224")

    def build(self, input_shape: Sequence[int], num_outputs: int) -> nn.Module:
        from erosion_common.learning.torchvision_import import models

        network: nn.Module = models.get_model(
            self.architecture, weights=None, num_classes=num_outputs
        )
        if input_shape[0] == 1:
            network.register_forward_pre_hook(_as_colours)
        return normalised(network, self.normalisation)

    def described(self) -> str:
        return f"{self.architecture} of torchvision"


def _as_colours(_network: nn.Module, inputs: tuple[Any, ...]) -> tuple[Tensor, ...]:
    (images,) = inputs
    return (images.expand(-1, 3, -1, -1),)


class MonaiNetwork(ModelBase):
    """A network of MONAI in two or three dimensions, by the study's images.

    Group normalisation has no statistics to average; "batch" is for weights that have them.
    """

    has_free_shapes: ClassVar[bool] = False
    is_tried_out: ClassVar[bool] = True

    name: Literal["monai"] = "monai"
    network: Literal["resnet10", "resnet18", "densenet121"] = Field(
        default="resnet10", description="Which of MONAI's networks."
    )
    normalisation: Literal["group", "batch", "site"] = Field(
        default="group", description=f'{_GROUP} `"batch"`: as in a file of weights. {_SITE}'
    )

    def check_task(self, input_shape: Sequence[int]) -> None:
        if len(input_shape) not in (3, 4):
            raise ValueError(
                "model.name = 'monai' needs images or volumes; for a table use 'logistic' or 'mlp'"
            )

    def build(self, input_shape: Sequence[int], num_outputs: int) -> nn.Module:
        """Return the network; raises ModelError where MONAI is not installed."""
        try:
            nets: Any = import_module("monai.networks.nets")  # which re-exports without saying so
        except ModuleNotFoundError:
            raise ModelError(
                "model.name = 'monai' needs MONAI, which is not installed",
                remedy=f"Run: {install_command('monai')}",
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
        return normalised(network, self.normalisation)

    def described(self) -> str:
        return f"{self.network} of MONAI"
