"""Labelled images in an npz file, or in one folder per class."""

import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError
from PIL.ImageFile import ImageFile
from PIL.TiffImagePlugin import BITSPERSAMPLE, TiffImageFile
from pydantic import AfterValidator, model_validator

from erosion.client.dataset.checked_targets import checked_targets
from erosion.client.dataset.column_values import MISSING_MARKERS
from erosion.client.dataset.row_hashes import hash_of_image, hash_of_text, hashes_of_arrays
from erosion.client.dataset.sources.data_source import (
    ImageSource,
    LabelledImages,
    check_path,
    entries_of,
    is_there,
    revision_of,
)
from erosion.client.dataset.sources.image_targets import (
    SHOWN,
    class_folders,
    faults,
    read_target,
    target_names,
)
from erosion.client.dataset.sources.pixels import Resize, fitted, wrong_size
from erosion.client.finding import Finding
from erosion.common.errors import DataError
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
MAX_DECODED_BYTES = 8 * 2**30  # a small archive can unpack to any size


def _checked_pattern(value: str) -> str:
    try:
        groups = re.compile(value).groups
    except re.error as problem:
        raise ValueError(f"it is no regular expression: {problem}") from None
    if groups != 1:
        raise ValueError('put one group ( ) around the patient, for example "^(.+?)_"')
    return value


PatientPattern = Annotated[str, AfterValidator(_checked_pattern)]


class ImageFiles(ImageSource):
    """Images in an .npz file, or in one folder per class.

    An .npz file has the array `images` and one array for each target of the study (`labels` for a
    class); under [data.columns] they can be called otherwise. `patient` names an array in it, too.
    """

    source: Literal["images"] = "images"
    path: Path
    patient_pattern: PatientPattern | None = None
    # regular expression; its group in a file's name is the patient, e.g. "^(.+?)_" for p12_left.png
    resize: Resize = "refuse"  # what becomes of an image in a folder that is of another size

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

    def describe(self) -> str:
        """The file or folder."""
        return f"Data in {self.path}"

    def check(self) -> Iterator[Finding]:
        """The file or folder is there and can be read."""
        yield check_path(self.path)

    def revision(self) -> str:
        """Of the file or folder."""
        return revision_of(self.path)

    def read(self, task: ImageTask) -> LabelledImages:
        """The images as the study wants them."""
        path = self.path
        if not is_there(path):
            raise DataError(
                f"There is no data file {path}. Check the path (data.path in a site file)."
            )
        if path.is_dir():
            return _read_folders(self, task)
        if path.suffix.lower() != ".npz" or not path.is_file():
            raise DataError(
                f"Data file {path} is no .npz file, but the study wants images: give an .npz with"
                f" images and {target_names(task)}, or a folder with one folder of images per"
                " class."
            )
        return _read_npz(self, task)


def _read_npz(source: ImageFiles, task: ImageTask) -> LabelledImages:
    path = source.path
    names = ["images", *(column.name for column in task.target_columns)]
    local = [source.local_name(name) for name in names]
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
            keys = None if source.patient is None else arrays[source.patient]
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
    columns = [c[:, 0] if c.ndim == 2 and c.shape[1] == 1 else c for c in columns]
    problems = _wrong_shapes(images, dict(zip(names[1:], columns, strict=True)), task)
    patients = None if keys is None else [str(key).strip() for key in keys.ravel().tolist()]
    if keys is not None and keys.shape != images.shape[:1]:
        problems.append(
            f"{source.patient} is of shape {keys.shape}, images of {images.shape}; give one patient"
            " for each image"
        )
    elif patients is not None:
        unnamed = [i for i, name in enumerate(patients) if name.lower() in MISSING_MARKERS]
        if unnamed:
            problems.append(
                f"{source.patient} is empty for {len(unnamed)} images, such as number"
                f" {unnamed[0]}; fill it in, so that it is known which images are of one patient"
            )
    read = [
        read_target(list(map(str, column.ravel())), source, wanted)
        for wanted, column in zip(task.target_columns, columns, strict=True)
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
        row_hashes=hashes,
    )


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


def _read_folders(source: ImageFiles, task: ImageTask) -> LabelledImages:
    path = source.path
    inside = [
        (file, code)
        for folder, code in class_folders(source, path, task)
        for file in entries_of(folder)
        if not file.name.startswith(".")
    ]
    files = [(file, code) for file, code in inside if not file.is_dir()]
    deeper = [f"{file.parent.name}/{file.name}" for file, _ in inside if file.is_dir()]
    if deeper:
        more = ", ..." if len(deeper) > SHOWN else ""
        problem = (
            f"{', '.join(deeper[:SHOWN])}{more}: folders in the folder of a class are not read;"
            " move their images up into it"
        )
        raise faults(path, [problem])
    if not files:
        raise faults(path, ["it holds no images; make one folder of images per class"])
    check_decoded(path, len(files) * int(np.prod(task.shape)))
    images = np.zeros((len(files), *task.shape), dtype=np.uint8)
    hashes = np.zeros(len(files), dtype=np.uint64)
    faulty = []
    for index, (file, _) in enumerate(files):
        image = _read_image(file, task, source.resize)
        if isinstance(image, str):
            faulty.append(f"{file.parent.name}/{file.name} {image}")
        else:
            images[index], hashes[index] = image
    if faulty:
        raise faults(path, faulty)
    return LabelledImages(
        images,
        checked_targets(task, np.array([[code] for _, code in files], dtype=np.float64)),
        tuple(f"{file.parent.name}/{file.name}" for file, _ in files),
        patients_in_names(path, source.patient_pattern, [file.name for file, _ in files]),
        row_hashes=hashes,
    )


def patients_in_names(
    path: Path, pattern: str | None, names: Sequence[str]
) -> NDArray[np.int64] | None:
    """A number for the patient in each file's name; raises DataError where a name has none."""
    if pattern is None:
        return None
    found = [re.search(pattern, name) for name in names]
    keys = ["" if match is None else match.group(1) or "" for match in found]
    unnamed = [name for name, key in zip(names, keys, strict=True) if not key]
    if unnamed:
        problem = (
            f"{len(unnamed)} names of files do not fit patient_pattern = {pattern!r}:"
            f" {', '.join(unnamed[:SHOWN])}; correct it"
        )
        raise faults(path, [problem])
    return np.unique(keys, return_inverse=True)[1]


def _read_image(file: Path, task: ImageTask, resize: Resize) -> tuple[NDArray[np.uint8], int] | str:
    """The image as (c, h, w) and its row hash, or what is wrong with it and the remedy."""
    if not file.is_file():  # a pipe never ends, and a link may lead nowhere
        return "is no file that can be read; remove it"
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
        return "is not an image that can be read; remove it or save it as PNG"
    except (OSError, SyntaxError, ValueError) as problem:
        return f"cannot be read ({problem}); save it again"


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


def check_decoded(path: Path, num_bytes: int) -> None:
    """Refuse images that would fill the memory; raises DataError."""
    if num_bytes > MAX_DECODED_BYTES:
        raise DataError(
            f"{path} unpacks to {num_bytes / 2**30:.1f} GiB, more than the"
            f" {MAX_DECODED_BYTES // 2**30} GiB that are read. Give fewer or smaller images."
        )
