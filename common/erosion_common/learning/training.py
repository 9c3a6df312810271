"""The local training of every hospital in a round: optimiser, steps and batches."""

import hashlib
from collections.abc import Callable, Sequence
from math import ceil, cos, pi
from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample, pad

from erosion_common.settings.base import Settings

AXES = {"horizontal": -1, "vertical": -2}  # left and right change places; top and bottom do


class Augmentation(Settings):
    """What may change in an image while a hospital trains on it; measuring changes nothing.

    The draws are the site's own: they come from its secret, as the order of mini-batches does. In a
    volume the last two axes are the image, and all its slices are changed alike.
    """

    flip: tuple[Literal["horizontal", "vertical"], ...] = Field(
        default=(), description="Each for half of the images."
    )
    crop: int = Field(
        default=0,
        ge=0,
        le=256,
        description="Pixels of black that are put around each image, from which its own size is "
        "cut out anywhere.",
    )
    rotation: float = Field(
        default=0.0, ge=0, le=180, description="Degrees at most, to either side."
    )
    brightness: float = Field(
        default=0.0, ge=0, lt=1, description="0.2: from 0.8 to 1.2 times as bright."
    )

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if not (self.flip or self.crop or self.rotation or self.brightness):
            raise ValueError("give flip, crop, rotation or brightness; or leave augmentation out")
        return self


def augmenter(
    settings: Augmentation, mean: Sequence[float], deviation: Sequence[float], seed: int
) -> Callable[[Tensor], Tensor]:
    """Changes mini-batches (m, c, [d,] h, w) of scaled inputs, one after another.

    `mean` and `deviation` are the task's, per channel: pixels lie in [0, 1] before that scaling.
    """
    digest = hashlib.sha256(f"{seed}/augmentation".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)

    def augment(inputs: Tensor) -> Tensor:
        shape = (1, -1, *([1] * (inputs.dim() - 2)))
        means = torch.tensor(mean, device=inputs.device).view(shape)
        deviations = torch.tensor(deviation, device=inputs.device).view(shape)
        pixels = _changed(inputs * deviations + means, settings, generator)
        return (pixels - means) / deviations

    return augment


def _changed(pixels: Tensor, settings: Augmentation, generator: torch.Generator) -> Tensor:
    count = len(pixels)

    def uniform(low: float, high: float) -> Tensor:
        drawn = torch.rand(count, generator=generator) * (high - low) + low
        return drawn.to(pixels.device)

    for way in dict.fromkeys(settings.flip):
        chosen = (uniform(0, 1) < 0.5).view(-1, *([1] * (pixels.dim() - 1)))
        pixels = torch.where(chosen, pixels.flip(AXES[way]), pixels)
    if settings.rotation:
        pixels = rotated(pixels, uniform(-settings.rotation, settings.rotation))
    if settings.crop:
        places = torch.randint(2 * settings.crop + 1, (count, 2), generator=generator)
        pixels = cropped(pixels, places, settings.crop)
    if settings.brightness:
        factors = uniform(1 - settings.brightness, 1 + settings.brightness)
        pixels = (pixels * factors.view(-1, *([1] * (pixels.dim() - 1)))).clamp(0, 1)
    return pixels


def cropped(pixels: Tensor, places: Tensor, margin: int) -> Tensor:
    """Return each image moved by (margin - row, margin - column) of `places` (m, 2), padded black.

    So a place of (margin, margin) leaves an image as it is.
    """
    height, width = pixels.shape[-2:]
    padded = pad(pixels, (margin, margin, margin, margin))
    return torch.stack(
        [
            image[..., row : row + height, column : column + width]
            for image, (row, column) in zip(padded, places.tolist(), strict=True)
        ]
    )


def rotated(pixels: Tensor, degrees: Tensor) -> Tensor:
    """Return each image turned by `degrees` (m,) counter-clockwise about its middle."""
    height, width = pixels.shape[-2:]
    angles = degrees * (pi / 180)
    sine, cosine, zero = angles.sin(), angles.cos(), torch.zeros_like(angles)
    # Of each pixel's origin, in coordinates from -1 to 1 along both sides.
    rows = [
        torch.stack([cosine, -sine * (height / width)], dim=1),
        torch.stack([sine * (width / height), cosine], dim=1),
    ]
    if pixels.dim() == 4:
        theta = torch.stack([torch.cat([row, zero[:, None]], dim=1) for row in rows], dim=1)
    else:
        flat = torch.stack([zero, zero], dim=1)
        theta = torch.stack([torch.cat([row, flat], dim=1) for row in rows], dim=1)
        along = torch.tensor([0.0, 0.0, 1.0, 0.0], device=pixels.device).expand(len(pixels), 1, 4)
        theta = torch.cat([theta, along], dim=1)
    grid = affine_grid(theta.to(pixels.dtype), list(pixels.shape), align_corners=False)
    return grid_sample(pixels, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


LARGEST_FACTOR = 1e12  # of the numbers of a model, which are float32 and end at 3e38


class Training(Settings):
    """What every hospital does in a round, starting from the parameters that it receives."""

    steps: int | None = Field(
        default=None,
        ge=1,
        le=100_000,
        description="Mini-batches of a round. Give this or `epochs`.",
    )
    epochs: int | None = Field(
        default=None,
        ge=1,
        le=1_000,
        description="Passes over the hospital's training patients in a round. Give this or "
        "`steps`.",
    )
    batch_size: int = Field(default=32, ge=1, description="Rows or images of a mini-batch.")
    order: Literal["random", "sequential"] = Field(
        default="random",
        description='`"sequential"`: mini-batches in the order of the file, the same in every '
        "pass; the last one may be short, and a round continues where the one before ended. Sites "
        "decline it unless their file says `compute.public_order = true`.",
    )
    optimizer: Literal["sgd", "adam"] = Field(default="sgd", description='`"sgd"` or `"adam"`.')
    learning_rate: float = Field(
        default=0.1, gt=0, le=LARGEST_FACTOR, description="Size of a step."
    )
    schedule: Literal["constant", "step", "cosine", "inverse_sqrt"] = Field(
        default="constant",
        description='How the learning rate falls over the study\'s rounds. `"step"`: to a tenth '
        'after half of them, to a hundredth after three quarters; `"cosine"`: along half a '
        'cosine; `"inverse_sqrt"`: divided by the square root of the round.',
    )
    momentum: float = Field(  # sgd only
        default=0.0,
        ge=0,
        lt=1,
        description='For `"sgd"`: what a step keeps of the one before, from 0 to less than 1.',
    )
    weight_decay: float = Field(
        default=0.0,
        ge=0,
        le=LARGEST_FACTOR,
        description="How strongly large parameters are pulled towards 0.",
    )
    augmentation: Augmentation | None = Field(
        default=None,
        description="What may change in images. Left out: they are trained on as they are.",
    )

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("give either steps (mini-batches a round) or epochs (passes a round)")
        if self.optimizer == "adam" and self.momentum:
            raise ValueError("momentum belongs to optimizer = 'sgd'; leave it out with adam")
        return self

    def at(self, round_number: int, rounds: int) -> "Training":
        """Return the training of a round (from 1) of `rounds`, with its learning rate."""
        if self.schedule == "constant":
            return self
        before = min(round_number, rounds) - 1  # after the last round only predictions are made
        factor = {
            "step": 0.1 ** (int(2 * before >= rounds) + int(4 * before >= 3 * rounds)),
            "cosine": (1 + cos(pi * before / rounds)) / 2,
            "inverse_sqrt": (before + 1) ** -0.5,
        }[self.schedule]
        return self.model_copy(update={"learning_rate": self.learning_rate * factor})

    def steps_with(self, num_samples: int) -> int:
        """Return how many mini-batches a hospital with `num_samples` takes in a round."""
        if self.steps is not None:
            return self.steps
        return (self.epochs or 1) * ceil(num_samples / self.batch_size)

    def sizes_of_a_pass(self, num_samples: int, smallest: int) -> list[int]:
        """Return the mini-batch sizes of a pass, none below `smallest`.

        The last one has those that are left over. Where they are too few, the last two share
        theirs evenly, or are one if that leaves either too few. A hospital with fewer samples has
        them all in one.
        """
        full, rest = divmod(num_samples, self.batch_size)
        sizes = [self.batch_size] * full + [rest] * (rest > 0)
        if full == 0 or not 0 < rest < smallest:
            return sizes
        shared = self.batch_size + rest
        fewer = shared // 2
        return sizes[:-2] + ([shared - fewer, fewer] if fewer >= smallest else [shared])

    def problem_for_plain_sgd(self, method: str) -> str | None:
        """Return why a method defined for plain SGD cannot use this, or None."""
        if self.optimizer == "sgd" and not self.momentum:
            return None
        given = "momentum" if self.optimizer == "sgd" else f"optimizer = {self.optimizer!r}"
        return (
            f"{method} is defined for plain SGD steps, and training has {given};"
            " write optimizer = 'sgd' and leave momentum out, or leave this arm out"
        )

    def problem_with_pull(self, proximal_weight: float) -> str | None:
        """Return why steps cannot follow the pull of a proximal term, or None.

        SGD with momentum m diverges where curvature times learning rate is 2 (1 + m) or more.
        """
        product = self.learning_rate * (proximal_weight + self.weight_decay)
        if self.optimizer != "sgd" or product < 2 * (1 + self.momentum):
            return None
        return (
            f"proximal_weight = {proximal_weight:g} with learning_rate = {self.learning_rate:g}"
            " takes every step further beyond what it is pulled to; lower one of them until their"
            " product is below 2"
        )
