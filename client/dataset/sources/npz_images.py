"""Labelled images in an .npz file."""

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from erosion.client.dataset.checked_targets import checked_targets
from erosion.client.dataset.missing_words import MISSING_MARKERS
from erosion.client.dataset.row_hashes import hashes_of_arrays
from erosion.client.dataset.sources.data_source import ImageSource, LabelledImages
from erosion.client.dataset.sources.image_targets import faults, read_target, target_names
from erosion.client.dataset.sources.pixels import check_decoded
from erosion.common.errors import DataError
from erosion.common.tasks.inputs import ImageTask


@dataclass(frozen=True, slots=True)
class _Arrays:
    """What an archive holds of the images."""

    images: NDArray[Any]
    columns: dict[str, NDArray[Any]]  # by target
    patients: NDArray[Any] | None
    hashes: NDArray[np.uint64]  # (n,) of all that the file says of each image


def read_npz(source: ImageSource, path: Path, task: ImageTask) -> LabelledImages:
    """The images as the study wants them; raises DataError with every problem."""
    arrays = _arrays(source, path, task)
    images = arrays.images
    problems = _wrong_shapes(images, arrays.columns, task)
    patients = None
    if arrays.patients is not None:
        patients = [str(key).strip() for key in arrays.patients.ravel().tolist()]
        problems += _wrong_patients(source, arrays.patients.shape, patients, images)
    read = [
        read_target(list(map(str, arrays.columns[wanted.name].ravel())), source, wanted)
        for wanted in task.target_columns
    ]
    problems += [problem for target in read for problem in target.problems]
    arranged = _channels_first(images, task)
    if arranged is None or problems:
        raise faults(path, problems)
    return LabelledImages(
        np.ascontiguousarray(arranged),
        checked_targets(task, np.stack([target.numbers for target in read], axis=1)),
        tuple(f"number {index}" for index in range(len(images))),
        None if patients is None else np.unique(patients, return_inverse=True)[1],
        tuple(note for target in read for note in target.notes),
        row_hashes=arrays.hashes,
    )


def _arrays(source: ImageSource, path: Path, task: ImageTask) -> _Arrays:
    targets = [column.name for column in task.target_columns]
    local = [source.local_name(name) for name in ("images", *targets)]
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
        check_decoded(path, unpacked)
        # allow_pickle: an array of objects can run code while it is read.
        with np.load(path, allow_pickle=False) as arrays:
            needed = local if source.patient is None else [*local, source.patient]
            absent = [name for name in needed if name not in arrays]
            if absent:
                raise DataError(
                    f"Data file {path} has no array {' and no array '.join(map(repr, absent))}; it"
                    f" has {', '.join(arrays) or 'none'}. Name them under [data.columns] as images"
                    f" and {target_names(task)}, and that of the patients as data.patient."
                )
            images, *columns = (arrays[name] for name in local)
            patients = None if source.patient is None else arrays[source.patient]
            num = len(images) if images.ndim else 0
            hashes = hashes_of_arrays(_of_each(images, local[0], arrays), num)
    except DataError:
        raise
    except Exception as problem:  # noqa: BLE001 - a damaged file may raise anything
        reason = (str(problem).splitlines() or ["damaged"])[0][:200]
        raise DataError(
            f"Data file {path} cannot be read: {reason}. Write it with numpy.savez, without"
            " arrays of objects."
        ) from None
    flat = (c[:, 0] if c.ndim == 2 and c.shape[1] == 1 else c for c in columns)
    return _Arrays(images, dict(zip(targets, flat, strict=True)), patients, hashes)


def _wrong_patients(
    source: ImageSource, shape: tuple[int, ...], patients: Sequence[str], images: NDArray[Any]
) -> list[str]:
    """What is wrong with the array of the patients."""
    if shape != images.shape[:1]:
        return [
            f"{source.patient} is of shape {shape}, images of {images.shape}; give one patient"
            " for each image"
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
    """The images, and every other array of the file with as many values, by name."""
    for name in arrays:
        try:
            array = images if name == called else arrays[name]
        except Exception:  # noqa: BLE001 - a damaged one, or one of objects, is not asked for
            continue
        if array.ndim and images.ndim and len(array) == len(images):
            yield name, array


def _wrong_shapes(
    images: NDArray[np.uint8], columns: dict[str, NDArray[np.generic]], task: ImageTask
) -> list[str]:
    """What is wrong with the shapes and types of the arrays."""
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
    """The images as (n, c, [d,] h, w), or None where they are of another size."""
    channels, *sides = task.shape
    if images.shape[1:] == tuple(sides) and channels == 1:
        return images[:, None]
    if images.shape[1:] == task.shape:
        return images
    if images.shape[1:] == (*sides, channels):
        return np.moveaxis(images, -1, 1)
    return None
