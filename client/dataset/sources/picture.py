"""One image file: upright, of the size that a study wants, and what is known of its bytes."""

import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError
from PIL.ImageFile import ImageFile
from PIL.TiffImagePlugin import BITSPERSAMPLE, TiffImageFile

from erosion.client.dataset.row_hashes import hash_of_image, hash_of_text
from erosion.client.dataset.sources.faulty_files import Damaged
from erosion.client.dataset.sources.pixels import Resize, fitted, wrong_size
from erosion.common.tasks.inputs import ImageTask

# How a camera held on its side says so (Exif 2.3, 4.6.4 A), and what puts the picture upright.
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
ON_ITS_SIDE = (5, 6, 7, 8)


def read_picture(
    file: Path, task: ImageTask, resize: Resize
) -> tuple[NDArray[np.uint8], int] | str:
    """The image as (c, h, w) and its row hash, or what is wrong with it and the remedy."""
    if not file.is_file():  # a pipe never ends, and a link may lead nowhere
        return Damaged("is no file that can be read; remove it")
    try:
        with warnings.catch_warnings():
            # Pillow only warns of an image that unpacks to a giant; it is never kept in full.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(file)
        with image:
            is_deep = _is_deep(image)
            turn = _orientation(image)  # for which some kinds of file are decoded
            size = image.size[::-1] if turn in ON_ITS_SIDE else image.size
            if resize == "refuse" and (wrong := wrong_size(size, task)):
                return wrong
            if image.mode not in ("1", "L", "LA", "P", "RGB", "RGBA"):
                # Pillow would clip 16-bit pixels to white.
                return f"is of mode {image.mode}; save it in grey or RGB, with 8 bits per channel"
            if is_deep:  # of these it would take the higher byte alone
                return "has more than 8 bits per channel; save it in grey or RGB, with 8"
            if (frames := getattr(image, "n_frames", 1)) > 1:
                return f"holds {frames} images, as films and stacks do; save the one that is meant"
            stored = f"{file.parent.name}\0{image.mode} {image.size} {image.getpalette()}"
            row_hash = hash_of_image(hash_of_text(stored), [image.tobytes()])
            pixels = image.convert("L" if task.shape[0] == 1 else "RGB")
            upright = pixels.transpose(UPRIGHT[turn]) if turn in UPRIGHT else pixels
            found = fitted(upright, task, resize)
            return found if isinstance(found, str) else (found, row_hash)
    except (UnidentifiedImageError, Image.DecompressionBombError):
        return Damaged("is not an image that can be read; remove it or save it as PNG")
    except Exception as problem:  # noqa: BLE001 - a damaged file may raise anything
        return Damaged(f"cannot be read ({problem}); save it again")


def _is_deep(image: Image.Image) -> bool:
    """Whether the file, not decoded yet, has more than 8 bits for a channel."""
    if isinstance(image, TiffImageFile):
        bits = image.tag_v2.get(BITSPERSAMPLE, (8,))
        return any(bit > 8 for bit in (bits if isinstance(bits, tuple) else (bits,)))
    if not isinstance(image, ImageFile):
        return False
    coded = [tile.args for tile in image.tile]
    if image.format == "PPM":  # whose largest value comes last
        return any(isinstance(args, tuple) and int(args[-1]) > 255 for args in coded)
    return any(";16" in str(args) for args in coded)


def _orientation(image: Image.Image) -> int:
    """How the picture is turned by what its camera wrote beside the pixels; 1: it is upright."""
    if image.format == "TIFF":
        return 1  # Pillow turns these itself
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # noqa: BLE001 - damaged notes may raise anything, and say nothing
        return 1
