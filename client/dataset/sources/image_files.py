"""Labelled images in an npz file, or in one folder per class."""

import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from pydantic import AfterValidator, model_validator

from erosion.client.dataset.column_values import Fault, target_parser
from erosion.client.dataset.sources.data_source import (
    DataSource,
    ImageSource,
    LabelledImages,
    check_path,
)
from erosion.client.finding import Finding
from erosion.common.errors import DataError
from erosion.common.settings.codes import canonical
from erosion.common.tasks.inputs import ImageTask
from erosion.common.tasks.task import CodedColumn, Targets

MAX_DECODED_BYTES = 8 * 2**30  # a small archive can unpack to any size
SHOWN = 5  # examples of each problem


def checked_pattern(value: str) -> str:
    """A regular expression with one group; raises ValueError."""
    try:
        groups = re.compile(value).groups
    except re.error as problem:
        raise ValueError(f"it is no regular expression: {problem}") from None
    if groups != 1:
        raise ValueError('put one group ( ) around the patient, for example "^(.+?)_"')
    return value


class ImageFiles(ImageSource):
    """Images in an .npz file with the arrays images and labels, or one folder of them per class.

    The names of the two arrays can be mapped under [data.columns] as `images` and `labels`, and
    `patient` names an array in the .npz too. In folders, `patient_pattern` finds the patient in the
    name of a file.
    """

    source: Literal["images"] = "images"
    path: Path
    patient_pattern: Annotated[str, AfterValidator(checked_pattern)] | None = None
    # regular expression; its group in a file's name is the patient, e.g. "^(.+?)_" for p12_left.png

    @model_validator(mode="after")
    def _key_fits(self) -> Self:
        is_npz = self.path.suffix.lower() == ".npz"
        if self.patient is not None and not is_npz:
            raise ValueError(
                "patient names an array in an .npz file; for folders of images give patient_pattern"
            )
        if self.patient_pattern is not None and is_npz:
            raise ValueError("patient_pattern is for folders of images; for an .npz give patient")
        return self

    def describe(self) -> str:
        """The file or folder."""
        return f"Data in {self.path}"

    def check(self) -> Iterator[Finding]:
        """The file or folder is there and can be read."""
        yield check_path(self.path)

    def read(self, task: ImageTask) -> LabelledImages:
        """The images as the study wants them."""
        path = self.path
        if path.is_dir():
            return _read_folders(self, task)
        if not path.exists():
            raise DataError(f"There is no data file {path}. Check data.path in the site file.")
        if path.suffix.lower() != ".npz":
            raise DataError(
                f"Data file {path} is no .npz file, but the study wants images: give an .npz with"
                " images and labels, or a folder with one folder of images per class."
            )
        return _read_npz(self, task)


def _read_npz(source: ImageFiles, task: ImageTask) -> LabelledImages:
    path = source.path
    images_name, labels_name = source.local_name("images"), source.local_name("labels")
    names = [images_name, labels_name] + [source.patient] * (source.patient is not None)
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
        if unpacked > MAX_DECODED_BYTES:
            raise _too_large(path, unpacked)
        # allow_pickle: an array of objects can run code while it is read.
        with np.load(path, allow_pickle=False) as arrays:
            absent = [name for name in names if name not in arrays]
            if absent:
                raise DataError(
                    f"Data file {path} has no array {' and no array '.join(map(repr, absent))}; it"
                    f" has {', '.join(arrays) or 'none'}. Name them under [data.columns] as images"
                    " and labels, and that of the patients as patient under [data]."
                )
            images, labels = arrays[images_name], arrays[labels_name]
            keys = None if source.patient is None else arrays[source.patient]
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as problem:
        raise DataError(
            f"Data file {path} cannot be read: {problem}. Write it with numpy.savez, without"
            " arrays of objects."
        ) from None
    problems = []
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        problems.append(f"labels are of shape {labels.shape}; give one label per image")
    if images.dtype != np.uint8:
        problems.append(f"images are {images.dtype}; store pixels from 0 to 255 as uint8")
    arranged = _channels_first(images, task)
    if arranged is None:
        channels, height, width = task.shape
        problems.append(
            f"images are of shape {images.shape}; the study wants (n, {height}, {width},"
            f" {channels}) or (n, {channels}, {height}, {width}); resize them"
        )
    elif len(images) == 0:
        problems.append("there are no images; store at least one")
    elif labels.ndim == 1 and len(labels) != len(images):
        problems.append(f"{len(images)} images and {len(labels)} labels; give one label per image")
    if keys is not None and keys.shape != (len(images),):
        problems.append(
            f"{source.patient} is of shape {keys.shape}; give one patient for each of the"
            f" {len(images)} images"
        )
    codes, unknown = _class_codes(labels.reshape(-1), source, task)
    problems += unknown
    if arranged is None or problems:
        raise _faults(path, problems)
    return LabelledImages(
        np.ascontiguousarray(arranged),
        codes,
        tuple(f"number {index}" for index in range(len(images))),
        None if keys is None else np.unique(keys, return_inverse=True)[1],
    )


def _channels_first(images: NDArray[np.uint8], task: ImageTask) -> NDArray[np.uint8] | None:
    """The images as (n, c, h, w), or None where they are of another size."""
    channels, height, width = task.shape
    if images.shape[1:] == (height, width) and channels == 1:
        return images[:, None]
    if images.shape[1:] == task.shape:
        return images
    if images.shape[1:] == (height, width, channels):
        return np.moveaxis(images, 3, 1)
    return None


def _class_codes(
    labels: NDArray[np.generic], source: DataSource, task: ImageTask
) -> tuple[Targets, list[str]]:
    """What every label means to the task, and what is wrong with the labels."""
    distinct, inverse = np.unique(labels, return_inverse=True)
    codes = _codes([str(label) for label in distinct.tolist()], source, task)
    unknown = [text for text, code in codes.items() if code is None]
    problems = []
    if unknown:
        coded = isinstance(task.target_columns[0], CodedColumn)
        wanted = "of the study's classes" if coded else "numbers that the study takes"
        problems.append(
            f"labels {', '.join(map(repr, unknown[:SHOWN]))} are not {wanted}; map them under"
            " [data.values.labels]"
        )
    known = np.array([np.nan if code is None else code for code in codes.values()])
    return np.zeros(0) if problems else task.targets(known[inverse][:, None]), problems


def _codes(texts: list[str], source: DataSource, task: ImageTask) -> Mapping[str, float | None]:
    """The number that stands for each label; None where it means none."""
    (column,) = task.target_columns  # the task has no other with images
    parse = target_parser(column)
    meant = source.values.get("labels", {})
    parsed = {text: parse(meant.get(canonical(text), text)) for text in texts}
    return {
        text: None if isinstance(code, Fault) or code != code else code
        for text, code in parsed.items()
    }


def _read_folders(source: ImageFiles, task: ImageTask) -> LabelledImages:
    path = source.path
    folders = sorted(entry for entry in path.iterdir() if _is_visible_folder(entry))
    codes = _codes([folder.name for folder in folders], source, task)
    problems = [
        f"folder {folder.name!r} is not of the study's classes; rename it, or map it under"
        " [data.values.labels]"
        for folder in folders
        if codes[folder.name] is None
    ]
    files = [
        (file, code)
        for folder in folders
        if (code := codes[folder.name]) is not None
        for file in sorted(folder.iterdir())
        if file.is_file() and not file.name.startswith(".")
    ]
    if not files and not problems:
        problems.append("it holds no images; make one folder of images per class")
    channels, height, width = task.shape
    if len(files) * channels * height * width > MAX_DECODED_BYTES:
        raise _too_large(path, len(files) * channels * height * width)
    if problems:
        raise _faults(path, problems)
    images = np.zeros((len(files), channels, height, width), dtype=np.uint8)
    faulty = []
    for index, (file, _) in enumerate(files):
        image = _read_image(file, task)
        if isinstance(image, str):
            faulty.append(f"{file.parent.name}/{file.name} {image}")
        else:
            images[index] = image
    if faulty:
        more = [f"and {len(faulty) - SHOWN} more files"] if len(faulty) > SHOWN else []
        raise _faults(path, faulty[:SHOWN] + more)
    return LabelledImages(
        images,
        np.array([code for _, code in files], dtype=np.int64),
        tuple(f"{file.parent.name}/{file.name}" for file, _ in files),
        _patients(source, [file.name for file, _ in files]),
    )


def _patients(source: ImageFiles, names: list[str]) -> NDArray[np.int64] | None:
    """A number for the patient in each file's name; raises DataError where a name has none."""
    if source.patient_pattern is None:
        return None
    found = [re.search(source.patient_pattern, name) for name in names]
    unnamed = [name for name, match in zip(names, found, strict=True) if match is None]
    if unnamed:
        raise _faults(
            source.path,
            [
                f"{len(unnamed)} names of files do not fit patient_pattern ="
                f" {source.patient_pattern!r}: {', '.join(unnamed[:SHOWN])}; correct it"
            ],
        )
    keys = [match.group(1) for match in found if match is not None]
    return np.unique(keys, return_inverse=True)[1]


def _is_visible_folder(entry: Path) -> bool:
    return entry.is_dir() and not entry.name.startswith(".")


def _read_image(file: Path, task: ImageTask) -> NDArray[np.uint8] | str:
    """The image as (c, h, w), or what is wrong with it and the remedy."""
    channels, height, width = task.shape
    try:
        with warnings.catch_warnings():
            # Pillow only warns of an image that unpacks to a giant; its size is checked below.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(file)
        with image:
            if image.size != (width, height):
                return (
                    f"has {image.size[0]} x {image.size[1]} pixels; the study wants"
                    f" {width} x {height}: resize it"
                )
            if image.mode not in ("1", "L", "P", "RGB", "RGBA"):
                # Pillow would clip 16-bit pixels to white.
                return f"is of mode {image.mode}; save it with 8 bits per channel"
            pixels = np.asarray(image.convert("L" if channels == 1 else "RGB"))
    except (UnidentifiedImageError, Image.DecompressionBombError):
        return "is not an image that can be read; remove it or save it as PNG"
    except (OSError, SyntaxError, ValueError) as problem:
        return f"cannot be read ({problem}); save it again"
    return pixels[None] if channels == 1 else np.moveaxis(pixels, 2, 0)


def _too_large(path: Path, num_bytes: int) -> DataError:
    return DataError(
        f"{path} unpacks to {num_bytes / 2**30:.1f} GiB, more than the"
        f" {MAX_DECODED_BYTES // 2**30} GiB that are read. Give fewer or smaller images."
    )


def _faults(path: Path, problems: list[str]) -> DataError:
    return DataError(f"Data in {path}:\n" + "\n".join(f"  {problem}" for problem in problems))
