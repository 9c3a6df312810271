"""Images as they might also have been taken: changed at random in every mini-batch of training."""

import hashlib
from collections.abc import Callable, Sequence
from math import pi
from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample, pad

from erosion.common.settings.base import Settings

AXES = {"horizontal": -1, "vertical": -2}  # left and right change places; top and bottom do


class Augmentation(Settings):
    """What may change in an image while a hospital trains on it; measuring changes nothing.

    The draws are the site's own: they come from its secret, as the order of mini-batches does. In a
    volume the last two axes are the image, and all its slices are changed alike.
    """

    flip: tuple[Literal["horizontal", "vertical"], ...] = ()  # each for half of the images
    crop: int = Field(default=0, ge=0, le=256)  # pixels of black that are put around each image,
    # from which its own size is cut out anywhere
    rotation: float = Field(default=0.0, ge=0, le=180)  # degrees at most, to either side
    brightness: float = Field(default=0.0, ge=0, lt=1)  # 0.2: from 0.8 to 1.2 times as bright

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
    """Each image moved by (margin - row, margin - column) of `places` (m, 2); what is new is black.

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
    """Each image turned by `degrees` (m,) about its middle, counter-clockwise as it is seen."""
    height, width = pixels.shape[-2:]
    angles = degrees * (pi / 180)
    sine, cosine, zero = angles.sin(), angles.cos(), torch.zeros_like(angles)
    # Of where each pixel comes from; in coordinates from -1 to 1, whatever the sides' lengths are.
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
