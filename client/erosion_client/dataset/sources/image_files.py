"""Labelled images in an npz file, or pictures in one folder per class."""

import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.ImageFile import ImageFile
from PIL.TiffImagePlugin import BITSPERSAMPLE, TiffImageFile
from pydantic import Field, model_validator

from erosion_client.dataset.column_values import MISSING_MARKERS
from erosion_client.dataset.sources.data_source import (
    ImageSource,
    LabelledImages,
    OnDisk,
    entries_of,
    files_below,
    is_there,
    not_there,
)
from erosion_client.dataset.sources.file_content import reason_of
from erosion_client.dataset.sources.labelled_images import (
    PatientPattern,
    Resize,
    UnusableImageError,
    cannot_be_read,
    check_decoded,
    faults,
    fitted,
    new_scans,
    patients_in_names,
    read_each,
    read_target,
    scans_by_class,
    target_names,
)
from erosion_client.dataset.task_checks import checked_targets
from erosion_client.dataset.text_table import hash_of_image, hashes_of_arrays, key_of
from erosion_common.errors import DataError
from erosion_common.support.text import some
from erosion_common.tasks.inputs import ImageTask

# Whatever a file is called: for EPS, Pillow would run Ghostscript.
FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")


class ImageFiles(OnDisk, ImageSource):
    """Images in an .npz file, or in one folder per class.

    An .npz file has the array `images` and one array per target of the study (`labels` for a
    class); [data.columns] can rename them. `patient` names an array in it, too.
    """

    source: Literal["images"] = "images"
    path: Path = Field(
        description="An .npz file with `images` and one array for each target, or a folder with "
        "one folder of images per class."
    )
    patient_pattern: PatientPattern | None = Field(
        default=None,
        description="Regular expression; its group in a file's name is the patient, such as "
        "`^(.+?)_` for `p12_left.png`.",
    )
    resize: Resize = Field(
        default="refuse",
        description="What becomes of an image in a folder that is of another size.",
    )

    @model_validator(mode="after")
    def _key_fits(self) -> Self:
        is_npz = self.path.suffix.lower() == ".npz"
        if self.patient is not None and not is_npz:
            raise ValueError(
                "patient names an array in an .npz file; for folders of images give patient_pattern"
            )
        if self.patient_pattern is not None and is_npz:
            raise ValueError("patient_pattern is for folders of images; for an .npz give patient")
        if self.resize != "refuse" and is_npz:
            raise ValueError("resize is for folders of images; store the .npz at the right size")
        return self

    def read(self, task: ImageTask, *, with_target: bool = True) -> LabelledImages:
        """Read the images as the study wants them."""
        path = self.path
        if not is_there(path):
            raise not_there("data file", path)
        is_npz = path.suffix.lower() == ".npz"
        if path.is_dir() or not (with_target or is_npz):
            return self._read_folders(task, with_target=with_target)
        if not (is_npz and path.is_file()):
            raise DataError(
                f"Data file {path} is no .npz file, but the study wants images: give an .npz with"
                f" images and {target_names(task)}, or a folder with one folder of images per"
                " class."
            )
        return _read_npz(self, path, task, with_target=with_target)

    def _read_folders(self, task: ImageTask, *, with_target: bool) -> LabelledImages:
        if with_target:
            scans = scans_by_class(self, self.path, task, _pictures)
        else:
            scans = new_scans(self, self.path, task, _all_pictures)
        if deeper := [str(path.relative_to(scans.root)) for path in scans.paths if path.is_dir()]:
            problem = (
                f"{some(deeper)}: folders in the folder of a class are not read; move their"
                " images up into it"
            )
            raise faults(self.path, [problem])
        found = read_each(
            self, scans, task, lambda path, _, said: _picture(path, task, self.resize, said)
        )
        pattern = self.patient_pattern if with_target else None
        patients = patients_in_names(self.path, pattern, found.places)
        return replace(found, patients=patients)


def _pictures(folder: Path) -> list[Path]:
    return [file for file in entries_of(folder) if not file.name.startswith(".")]


def _all_pictures(folder: Path) -> list[Path]:
    return [file for file in files_below(folder) if not file.name.startswith(".")]


def _picture(
    file: Path, task: ImageTask, resize: Resize, said: int
) -> tuple[NDArray[np.uint8], int]:
    """Return the upright image as (c, h, w), and its row hash. Raises UnusableImageError."""
    try:
        with warnings.catch_warnings():
            # Pillow only warns about an image that unpacks to a huge one; it is never kept in full.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(file, formats=FORMATS) as image:
                image.verify()  # PNG's checksums, which decoding passes over
            image = Image.open(file, formats=FORMATS)
        with image:
            is_deep = _is_deep(image)
            if image.mode not in ("1", "L", "LA", "P", "RGB", "RGBA"):
                # Pillow would clip 16-bit pixels to white.
                raise UnusableImageError(
                    f"is of mode {image.mode}; save it in grey or RGB, with 8 bits per channel"
                )
            if is_deep:  # for these it would use the higher byte alone
                raise UnusableImageError(
                    "has more than 8 bits per channel; save it in grey or RGB, with 8"
                )
            if (frames := getattr(image, "n_frames", 1)) > 1:
                raise UnusableImageError(
                    f"holds {frames} images, as films and stacks do; save the one that is meant"
                )
            if (
                image.has_transparency_data
                and np.asarray(image.convert("RGBA"))[..., 3].min() < 255
            ):
                raise UnusableImageError(
                    "has transparent pixels with hidden colours; save it without transparency"
                )
            stored = f"{image.mode} {image.size} {image.getpalette()}"
            row_hash = hash_of_image(said, [stored.encode(), image.tobytes()])
            upright: Image.Image = image
            with suppress(Exception):  # damaged notes of a camera may raise anything
                upright = ImageOps.exif_transpose(image)
            return fitted(upright, task, resize), row_hash
    except UnusableImageError:
        raise
    except Image.DecompressionBombError:
        raise UnusableImageError("has more pixels than are read; save it smaller") from None
    except UnidentifiedImageError:
        raise UnusableImageError(
            "is not an image that can be read; remove it or save it as PNG", is_damaged=True
        ) from None
    except Exception as problem:  # noqa: BLE001 - a damaged file may raise anything
        raise cannot_be_read(problem) from None


def _is_deep(image: Image.Image) -> bool:
    """Return whether the file, not decoded yet, has more than 8 bits per channel."""
    if isinstance(image, TiffImageFile):
        bits = image.tag_v2.get(BITSPERSAMPLE, (8,))
        return any(bit > 8 for bit in (bits if isinstance(bits, tuple) else (bits,)))
    if not isinstance(image, ImageFile):
        return False
    coded = [tile.args for tile in image.tile]
    if image.format == "PPM":  # its largest value comes last
        return any(isinstance(args, tuple) and int(args[-1]) > 255 for args in coded)
    return any(";16" in str(args) for args in coded)


def _read_npz(
    source: ImageFiles, path: Path, task: ImageTask, *, with_target: bool
) -> LabelledImages:
    """Read the images of an archive. Raises DataError with every problem."""
    wanted = task.target_columns if with_target else ()
    targets = [column.name for column in wanted]
    local = [source.local_name(name) for name in ("images", *targets)]
    key = source.patient if with_target else None
    needed = local if key is None else [*local, key]
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
        check_decoded(path, unpacked)
        # allow_pickle: an array of objects can run code while it is read.
        with np.load(path, allow_pickle=False) as arrays:
            absent = [name for name in needed if name not in arrays]
            if absent:
                raise DataError(
                    f"Data file {path} has no array"
                    f" {' and no array '.join(map(repr, absent))}; it has"
                    f" {', '.join(arrays) or 'none'}",
                    remedy="Name them under [data.columns] as"
                    f" {' and '.join(['images', *targets])}, and that of the patients as"
                    " data.patient.",
                )
            images, *columns = (arrays[name] for name in local)
            keys = None if key is None else arrays[key]
            num = len(images) if images.ndim else 0
            hashes = hashes_of_arrays(_of_each(images, local[0], arrays), num)
    except DataError:
        raise
    except Exception as problem:  # noqa: BLE001 - a damaged file may raise anything
        raise DataError(
            f"Data file {path} cannot be read: {reason_of(problem)}",
            remedy="Write it with numpy.savez, without arrays of objects.",
        ) from None
    columns = [c[:, 0] if c.ndim == 2 and c.shape[1] == 1 else c for c in columns]
    problems = _wrong_shapes(images, dict(zip(targets, columns, strict=True)), task)
    patients = None
    if keys is not None:
        patients = [key_of(str(key).strip()) for key in keys.ravel().tolist()]
        problems += _wrong_patients(source, keys, patients, images)
    read = [
        read_target(list(map(str, values.ravel())), source, column)
        for column, values in zip(wanted, columns, strict=True)
    ]
    problems += [problem for target in read for problem in target.problems]
    arranged = _channels_first(images, task)
    if arranged is None or problems:
        raise faults(path, problems)
    return LabelledImages(
        np.ascontiguousarray(arranged),
        checked_targets(task, np.stack([target.numbers for target in read], axis=1))
        if read
        else np.zeros(len(images)),
        tuple(f"number {index}" for index in range(len(images))),
        None if patients is None else np.unique(patients, return_inverse=True)[1],
        tuple(note for target in read for note in target.notes),
        row_hashes=hashes,
    )


def _wrong_patients(
    source: ImageSource, keys: NDArray[Any], patients: Sequence[str], images: NDArray[Any]
) -> list[str]:
    """Return what is wrong with the array of patients."""
    if keys.shape != images.shape[:1]:
        return [
            f"{source.patient} is of shape {keys.shape}, images of {images.shape}; give one patient"
            " for each image"
        ]
    if keys.dtype.kind == "f" and (np.abs(keys) >= 2 / np.finfo(keys.dtype).eps).any():
        return [
            f"{source.patient} has numbers too large for {keys.dtype}, in which different patients"
            " may share one; store them as whole numbers or as text"
        ]
    unnamed = [i for i, name in enumerate(patients) if name.lower() in MISSING_MARKERS]
    if not unnamed:
        return []
    return [
        f"{source.patient} is empty for {len(unnamed)} images, such as number"
        f" {unnamed[0]}; fill it in, so that it is known which images are of one patient"
    ]


def _of_each(
    images: NDArray[Any], called: str, arrays: Mapping[str, NDArray[Any]]
) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the images, and every other array of the file with as many values, by name."""
    for name in arrays:
        try:
            array = images if name == called else arrays[name]
        except Exception:  # noqa: BLE001 - a damaged array, or one of objects, is skipped
            continue
        if array.ndim and images.ndim and len(array) == len(images):
            yield name, array


def _wrong_shapes(
    images: NDArray[np.uint8], columns: dict[str, NDArray[np.generic]], task: ImageTask
) -> list[str]:
    """Return what is wrong with the shapes and types of the arrays."""
    problems = [
        f"{name} are of shape {column.shape}; give one value per image"
        for name, column in columns.items()
        if column.ndim != 1
    ]
    if images.dtype != np.uint8:
        problems.append(f"images are {images.dtype}; store pixels from 0 to 255 as uint8")
    if _channels_first(images, task) is None:
        channels, *sides = task.shape
        size = ", ".join(map(str, sides))
        problems.append(
            f"images are of shape {images.shape}; the study wants (n, {size}, {channels}) or"
            f" (n, {channels}, {size}); resize them"
        )
    elif len(images) == 0:
        problems.append("there are no images; store at least one")
    else:
        problems += [
            f"{len(images)} images and {len(column)} {name}; give one value per image"
            for name, column in columns.items()
            if column.ndim == 1 and len(column) != len(images)
        ]
    return problems


def _channels_first(images: NDArray[np.uint8], task: ImageTask) -> NDArray[np.uint8] | None:
    """Return the images as (n, c, [d,] h, w), or None where they have another size."""
    channels, *sides = task.shape
    if images.shape[1:] == tuple(sides) and channels == 1:
        return images[:, None]
    if images.shape[1:] == task.shape:
        return images
    if images.shape[1:] == (*sides, channels):
        return np.moveaxis(images, -1, 1)
    return None
