"""From scanner measurements or photographs to the 8-bit images that a study wants."""

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from pydantic import AfterValidator
from torch.nn.functional import interpolate

from erosion.common.errors import DataError
from erosion.common.tasks.inputs import ImageTask

Resize = Literal["refuse", "stretch", "pad"]  # "pad": keep the proportions, add black margins
MAX_DECODED_BYTES = 8 * 2**30  # a small archive can unpack to any size


class UnusableImageError(Exception):
    """What is wrong with one image, and the remedy; `is_damaged`: nothing in it can be seen."""

    def __init__(self, wrong: str, *, is_damaged: bool = False) -> None:
        super().__init__(wrong)
        self.wrong, self.is_damaged = wrong, is_damaged


def cannot_be_read(problem: Exception, what: str = "") -> UnusableImageError:
    """Return the error for a file that a library cannot read."""
    lines = str(problem).strip().splitlines()
    reason = lines[0][:200] if lines else type(problem).__name__
    return UnusableImageError(f"{what}cannot be read ({reason}); export it again", is_damaged=True)


def _checked_window(value: tuple[float, float]) -> tuple[float, float]:
    if value[1] <= 0:
        raise ValueError("write it as [centre, width], with a width of more than 0")
    return value


Window = Annotated[tuple[float, float], AfterValidator(_checked_window)]  # (centre, width)


def windowed(values: NDArray[np.float64], window: Window) -> NDArray[np.uint8]:
    """Map measured values to grey levels: black at the window's lower end, white at the upper."""
    centre, width = window
    with np.errstate(over="ignore"):  # in a window of width 0 everything is black or white
        grey = (values - (centre - width / 2)) / width * 255
    return np.clip(np.round(grey), 0, 255).astype(np.uint8)


def check_size(size: tuple[int, int], task: ImageTask) -> None:
    """Raise UnusableImageError for an image of another (width, height) than the study wants."""
    if task.is_of_volumes:
        raise UnusableImageError(
            "is an image, and the study wants volumes: give NIfTI, or DICOM series as volumes"
        )
    _, height, width = task.shape
    if size != (width, height):
        raise UnusableImageError(
            f"has {size[0]} x {size[1]} pixels; the study wants {width} x {height}: resize it, or"
            ' write resize = "stretch" or "pad" under [data]'
        )


def fitted(image: Image.Image, task: ImageTask, resize: Resize) -> NDArray[np.uint8]:
    """Return an image as the study wants it: (c, h, w). Raises UnusableImageError."""
    if resize == "refuse" or task.is_of_volumes:
        check_size(image.size, task)
    channels, height, width = task.shape
    if image.size != (width, height):
        image = _resized(image, (width, height), keep_proportions=resize == "pad")
    found: NDArray[np.uint8] = np.asarray(image.convert("L" if channels == 1 else "RGB"))
    return found[None] if channels == 1 else np.moveaxis(found, 2, 0)


def _resized(image: Image.Image, size: tuple[int, int], *, keep_proportions: bool) -> Image.Image:
    if not keep_proportions:
        return image.resize(size, Image.Resampling.BILINEAR)
    scale = min(size[0] / image.size[0], size[1] / image.size[1])
    inner = (max(round(image.size[0] * scale), 1), max(round(image.size[1] * scale), 1))
    canvas = Image.new(image.mode, size)
    place = ((size[0] - inner[0]) // 2, (size[1] - inner[1]) // 2)
    canvas.paste(image.resize(inner, Image.Resampling.BILINEAR), place)
    return canvas


def fitted_volume(volume: NDArray[np.uint8], task: ImageTask, resize: Resize) -> NDArray[np.uint8]:
    """Return a volume (d, h, w) as the study wants it: (1, d, h, w). Raises UnusableImageError."""
    wanted = task.shape[1:]
    if len(wanted) != 3:
        raise UnusableImageError(
            "is a volume, and the study wants images: name a plane of it, or let task.shape be"
            " [1, depth, height, width]"
        )
    if volume.shape == wanted:
        return volume[None]
    if resize == "refuse":
        raise UnusableImageError(
            f"has {_times(volume.shape)} voxels; the study wants {_times(wanted)} (depth, height,"
            ' width): resample it, or write resize = "stretch" or "pad" under [data]'
        )
    inner = wanted
    if resize == "pad":
        scale = min(w / size for w, size in zip(wanted, volume.shape, strict=True))
        inner = tuple(
            min(max(round(size * scale), 1), w)
            for w, size in zip(wanted, volume.shape, strict=True)
        )
    values = torch.from_numpy(np.ascontiguousarray(volume)).float()[None, None]
    scaled = interpolate(values, size=inner, mode="trilinear", align_corners=False)
    canvas = np.zeros(wanted, dtype=np.uint8)
    z, y, x = ((w - size) // 2 for w, size in zip(wanted, inner, strict=True))
    depth, height, width = inner
    grey = scaled[0, 0].round().clamp(0, 255).to(torch.uint8).numpy()
    canvas[z : z + depth, y : y + height, x : x + width] = grey
    return canvas[None]


def _times(lengths: tuple[int, ...]) -> str:
    return " x ".join(map(str, lengths))


def check_decoded(path: Path, num_bytes: int) -> None:
    """Refuse images that would fill the memory. Raises DataError."""
    if num_bytes > MAX_DECODED_BYTES:
        raise DataError(
            f"{path} unpacks to {num_bytes / 2**30:.1f} GiB, more than the"
            f" {MAX_DECODED_BYTES // 2**30} GiB that are read. Give fewer or smaller images."
        )
