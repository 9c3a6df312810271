"""NIfTI volumes, through nibabel: one slice of each as an image, or the whole."""

import gzip
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field, model_validator

from erosion_client.dataset.column_values import LARGEST_NUMBER
from erosion_client.dataset.sources.data_source import LabelledImages, files_below
from erosion_client.dataset.sources.file_content import CHUNK
from erosion_client.dataset.sources.labelled_images import (
    PatientPattern,
    ScanFolder,
    UnusableImageError,
    Window,
    are_square,
    cannot_be_read,
    check_decoded,
    distorted,
    fitted,
    fitted_volume,
    not_read,
    patients_in_names,
    read_each,
    windowed,
)
from erosion_client.dataset.text_table import hash_of_image
from erosion_common.errors import DataError
from erosion_common.support.text import some
from erosion_common.tasks.inputs import ImageTask

SUFFIXES = (".nii", ".nii.gz")
AXES = {"sagittal": 0, "coronal": 1, "axial": 2}  # of a volume turned to right, anterior, superior
PERCENTILES = (1, 99)
FEW_VALUES = 8
FEWEST_VOXELS = 64  # fewer may well have few distinct values
LABEL_MAP = (
    "holds a few whole numbers alone, as masks and maps of labels do; move it to another folder, or"
    " name the files that are meant in a table of labels (data.labels)"
)


class NiftiImages(ScanFolder):
    """.nii and .nii.gz files in one folder per class, or below a folder with a table of labels.

    Each volume is turned to the standard axes by its header. A study of images gets the slice
    through its middle; a study of volumes the whole of it: axial slices from below to above. The
    orientation is that of DICOM scans, so that hospitals with either format train on the same
    picture: at the left edge the patient's right, or in a sagittal slice the front, and at the
    upper edge the front or the top.
    """

    source: Literal["nifti"] = "nifti"
    plane: Literal["axial", "coronal", "sagittal"] = Field(
        default="axial",
        description="In which direction the slice is taken, through the middle of the volume.",
    )
    window: Window | Literal["percentiles"] = Field(
        default="percentiles",
        description='`[centre, width]`. `"percentiles"`: from the 1st to the 99th percentile of '
        "the volume, for magnetic resonance, which has no unit.",
    )
    patient_pattern: PatientPattern | None = Field(
        default=None, description="Regular expression; its group in a file's name is the patient."
    )

    @model_validator(mode="after")
    def _key_fits(self) -> "NiftiImages":
        if self.patient is not None:
            raise ValueError("patient names a column of a table; for NIfTI give patient_pattern")
        return self

    def read(self, task: ImageTask, *, with_target: bool = True) -> LabelledImages:
        """Read the images as the study wants them."""
        self.require("nibabel", "nifti")
        scans = self.scans(task, _volumes, with_target=with_target)
        unsaid: list[str] = []  # volumes without orientation in their headers

        def read_one(path: Path, place: str, said: int) -> tuple[NDArray[np.uint8], int]:
            volume = _volume(path)
            if self.labels is None and _is_label_map(volume):
                raise UnusableImageError(LABEL_MAP)
            across, down = (volume.sides[axis] for axis in _axes_shown(self.plane, task))
            if self.resize != "stretch" and not are_square(down, across):
                raise UnusableImageError(distorted(f"{down:g} x {across:g}"))
            if not volume.says_how_it_lies:
                unsaid.append(place)
            axial = (np.ascontiguousarray(one).data for one in volume.values.transpose(2, 0, 1))
            return self._image(volume.values, task), hash_of_image(said, axial)

        found = read_each(self, scans, task, read_one)
        notes = [*found.notes]
        if unsaid:
            notes.append(
                f"{len(unsaid)} volumes do not state their orientation (qform_code and sform_code"
                " are 0), so left and right, or all axes, may be mistaken:"
                f" {some(unsaid)}; convert them again from the scanner's files"
            )
        pattern = self.patient_pattern if with_target else None
        return replace(
            found,
            patients=patients_in_names(self.path, pattern, found.places),
            notes=(*notes, *self._others(scans.paths)),
        )

    def _others(self, read: Sequence[Path]) -> Iterator[str]:
        """Yield a note of other files in the folders, such as volumes in another format."""
        if not self.path.is_dir():
            return
        known = {*read, *([] if self.labels is None else [self.labels])}
        others = [f for f in files_below(self.path) if not _is_volume(f) and f not in known]
        inside = [f for f in others if self.labels or f.parent != self.path]  # see scans_by_class
        inside = [f for f in inside if not f.name.startswith(".")]
        yield from not_read(self.path, [str(f.relative_to(self.path)) for f in inside])

    def _image(self, values: NDArray[np.float64], task: ImageTask) -> NDArray[np.uint8]:
        """Read the slice or volume as the study wants it."""
        window = self.window
        if window == "percentiles":
            low, high = np.percentile(values, PERCENTILES).tolist()
            window = (low + high) / 2, max(high - low, np.finfo(np.float64).tiny)
        if task.is_of_volumes:
            slices = np.transpose(values, (2, 1, 0))[:, ::-1, ::-1]
            grey = np.empty(slices.shape, dtype=np.uint8)
            for place, one in enumerate(slices):  # the whole at once would double the memory
                grey[place] = windowed(one, window)
            return fitted_volume(grey, task, self.resize)
        axis = AXES[self.plane]
        # Of an even number the one that DICOM's order gives: coronal slices from the front.
        middle = (values.shape[axis] - (self.plane == "coronal")) // 2
        grey = windowed(np.take(values, middle, axis=axis), window)
        image = Image.fromarray(np.ascontiguousarray(grey.T[::-1, ::-1]))
        return fitted(image, task, self.resize)


@dataclass(frozen=True, slots=True)
class _Volume:
    """The content of one file."""

    values: NDArray[np.float64]  # (x, y, z), the axes to the right, to the front and up
    is_of_integers: bool  # as stored
    sides: tuple[float, ...]  # of a voxel, in mm, along these axes
    says_how_it_lies: bool  # else the axes of the format before orientation was stored


def _volume(path: Path) -> _Volume:
    """Read the volume, turned to the standard axes. Raises UnusableImageError."""
    import nibabel

    is_packed = path.suffix.lower() == ".gz"
    try:
        stored: Any = nibabel.load(path)
        kind = stored.get_data_dtype().kind
        if kind not in "iuf":
            raise UnusableImageError(
                "holds complex numbers or colours; export the magnitudes, one number per voxel"
            )
        check_decoded(path, 8 * int(np.prod(stored.shape)))
        says = any(int(stored.header[code]) > 0 for code in ("qform_code", "sform_code"))
        shape = stored.shape[:3] if set(stored.shape[3:]) <= {1} else stored.shape
        if len(shape) != 3 or min(shape) < 1:
            size = " x ".join(map(str, stored.shape))
            raise UnusableImageError(f"is of shape {size}; give volumes of three dimensions")
        with (
            gzip.open(path) if is_packed else path.open("rb") as file,
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore", RuntimeWarning)  # from scales that overflow
            unread = type(stored).from_stream(file)
            volume: Any = nibabel.funcs.as_closest_canonical(unread)  # type: ignore[no-untyped-call]
            found = volume.get_fdata(caching="unchanged")
            while is_packed and file.read(CHUNK):  # to the end, where the checksum is
                pass
        values: NDArray[np.float64] = found.reshape(found.shape[:3])
        sides = tuple(nibabel.affines.voxel_sizes(volume.affine).tolist())  # type: ignore[no-untyped-call]
    except UnusableImageError:
        raise
    except DataError as problem:
        raise UnusableImageError(f"is too large ({problem})") from None
    except Exception as problem:  # noqa: BLE001 - a damaged file may raise anything
        raise cannot_be_read(problem) from None
    if not np.isfinite(values).all():
        raise UnusableImageError(
            "holds values that are not finite; export it again, with 0 for what is unknown"
        )
    if max(-values.min(), values.max()) > LARGEST_NUMBER:
        raise UnusableImageError(f"holds values beyond ±{LARGEST_NUMBER:g}; export it again")
    return _Volume(values, kind in "iu", sides, says)


def _axes_shown(plane: str, task: ImageTask) -> list[int]:
    """Return the axes of the slice in this plane; of a volume, those of its axial slices."""
    return [axis for axis in range(3) if axis != AXES["axial" if task.is_of_volumes else plane]]


def _is_label_map(volume: _Volume) -> bool:
    """Return whether a volume holds labels: a few whole numbers, of floats 0, 1, 2 and so on."""
    values = volume.values
    if values.size < FEWEST_VOXELS or values.min() != 0 or values.max() > 255:
        return False
    whole = values.astype(np.uint8)
    if not (whole == values).all():
        return False
    found = np.unique(whole).tolist()
    counts_on = found == [*range(len(found))]
    return (volume.is_of_integers or counts_on) and 2 <= len(found) <= FEW_VALUES


def _volumes(folder: Path) -> list[Path]:
    return [file for file in files_below(folder) if _is_volume(file)]


def _is_volume(file: Path) -> bool:
    return file.name.lower().endswith(SUFFIXES) and not file.name.startswith(".")
