"""DICOM images, through pydicom: their pixels, and nothing else in the files."""

import warnings
import zlib
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from erosion_client.dataset.column_values import MISSING_MARKERS
from erosion_client.dataset.sources.data_source import LabelledImages, files_below
from erosion_client.dataset.sources.dicom_pixels import (
    OwnWindow,
    other_window,
    own_window,
    place,
    plane,
    shown,
)
from erosion_client.dataset.sources.file_content import CHUNK
from erosion_client.dataset.sources.labelled_images import (
    ScanFolder,
    UnusableImageError,
    Window,
    cannot_be_read,
    fitted,
    fitted_volume,
    read_each,
)
from erosion_client.dataset.text_table import hash_of_image, key_of
from erosion_common.errors import DataError
from erosion_common.tasks.inputs import ImageTask

if TYPE_CHECKING:
    from pydicom import FileDataset

HEADER_BYTES = 144  # of a file, up to the data that its group length counts
MOST_UNPACKED = 2**30  # bytes of a deflated file
UNEVEN = 0.1  # relative to the median distance between two slices


class DicomImages(ScanFolder):
    """DICOM files in one folder per class, or anywhere below a folder with a table of labels.

    Values are rescaled by each file's slope and intercept and shown through the window. Of the
    other tags only the patient's is used, to group one patient's images, and it stays here.
    """

    source: Literal["dicom"] = "dicom"
    slice: Literal["each", "middle", "all"] = Field(
        default="each",
        description='`"each"`: every file is an image. `"middle"`: the middle one of each series '
        'is. `"all"`: for a study of volumes; all slices of a series, in their order, are one '
        "volume.",
    )
    series: str = Field(
        default="*",
        description='For `"middle"` and `"all"`: which SeriesDescription, where a folder holds '
        "several; `*` stands for anything.",
    )
    window: Window | Literal["file"] = Field(
        default="file",
        description='`[centre, width]`, in the values after rescaling. `"file"`: each file\'s '
        "own, which must be one for all slices of a volume.",
    )
    patient: str | None = Field(
        default="PatientID",
        min_length=1,
        description="Keyword of the tag that identifies patients. It is used here alone and "
        "never sent.",
    )

    def read(self, task: ImageTask, *, with_target: bool = True) -> LabelledImages:
        """Read the images as the study wants them."""
        self.require("pydicom", "dicom")
        if (self.slice == "all") != task.is_of_volumes:
            wanted, write = ("volumes", '"all"') if task.is_of_volumes else ("images", '"each"')
            raise DataError(
                f"the study wants {wanted}; write slice = {write} under [data].",
                where=self.describe(),
            )
        scans_in = _files if self.slice == "each" else _folders
        scans = self.scans(task, scans_in, with_target=with_target)
        seen = _ScansSeen()

        def read_one(path: Path, name: str, said: int) -> tuple[NDArray[np.uint8], int]:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # for values that break DICOM's own rules
                    slices = [_read(path)] if self.slice == "each" else self._series(path)
                    image = self._image(slices, task)
                    patient = self._patient(slices[0]) if with_target else ""
                    seen.add(slices[0], name, patient, self.window == "file")
                    return image, hash_of_image(said, (one.PixelData for one in slices))
            except UnusableImageError:
                raise
            except Exception as problem:  # noqa: BLE001 - tags are parsed when they are read
                raise cannot_be_read(problem) from None

        found = read_each(self, scans, task, read_one, seen.problems)
        keys = None
        if self.patient is not None and with_target:
            patients = [seen.patients[name] for name in found.places]
            keys = np.unique(patients, return_inverse=True)[1]
        return replace(found, patients=keys, notes=(*found.notes, *seen.notes()))

    def _image(self, slices: "list[FileDataset]", task: ImageTask) -> NDArray[np.uint8]:
        may_stretch = self.resize == "stretch"
        if self.slice != "all":
            return fitted(shown(slices[0], self.window, may_stretch=may_stretch), task, self.resize)
        planes = [
            np.asarray(shown(data, self.window, may_stretch=may_stretch).convert("L"))
            for data in slices
        ]
        if len(sizes := sorted({found.shape for found in planes})) > 1:
            sides = ", ".join(f"{width} x {height}" for height, width in sizes)
            raise UnusableImageError(f"has slices of {sides} pixels; keep those of one series")
        return fitted_volume(np.stack(planes), task, self.resize)

    def _patient(self, data: "FileDataset") -> str:
        if self.patient is None:
            return ""
        found = key_of(str(data.get(self.patient, "")).strip())
        if found.lower() in MISSING_MARKERS:
            raise UnusableImageError(
                f"names nobody in the tag {self.patient}, which identifies patients; name another"
                " as patient under [data]"
            )
        return found

    def _series(self, folder: Path) -> "list[FileDataset]":
        """Return the folder's only series, or the chosen one: its middle, or all in order."""
        if not folder.is_dir():
            raise UnusableImageError('is no folder of a series; write slice = "each" under [data]')
        slices = [_read(file, pixels=False) for file in _files(folder)]
        slices = [
            s for s in slices if fnmatchcase(str(s.get("SeriesDescription", "")), self.series)
        ]
        if not slices:
            raise UnusableImageError(
                f"has no series that fits series = {self.series!r}; correct it"
            )
        found = {str(s.get("SeriesInstanceUID", "")): s for s in slices}
        if len(found) > 1:
            names = sorted({str(s.get("SeriesDescription", "unnamed")) for s in found.values()})
            raise UnusableImageError(
                f"holds {len(found)} series ({', '.join(names)}); keep one, or write series ="
                ' "ITS NAME" under [data] (* is a wildcard)'
            )
        ordered = _in_order(slices, complete=self.slice == "all")
        if self.window == "file":
            for data in ordered:
                if own_window(data) != own_window(ordered[0]):
                    raise UnusableImageError(other_window(own_window(ordered[0]), data))
        if len(units := {_unit(data) for data in ordered}) > 1:
            raise UnusableImageError(
                f"has slices in different units ({', '.join(sorted(units))}); keep those in one"
            )
        if self.slice == "middle":
            ordered = [ordered[len(ordered) // 2]]
        return [_read(Path(str(data.filename))) for data in ordered]


class _ScansSeen:
    """What a folder's files say about themselves."""

    def __init__(self) -> None:
        self.patients: dict[str, str] = {}  # by scan
        # By property: each value with the first scan that has it.
        self._firsts: dict[str, dict[str, str]] = {"modality": {}, "unit": {}, "plane": {}}
        self._windows: dict[str, tuple[OwnWindow, str]] = {}  # by series
        self._num_of_several = 0  # scans that name several windows

    def add(self, data: "FileDataset", name: str, patient: str, is_own_window: bool) -> None:
        """Add a scan. Raises UnusableImageError where its window differs from its series'."""
        self.patients[name] = patient
        said = {"modality": str(data.get("Modality", "unknown")), "unit": _unit(data)}
        for what, value in (said | {"plane": plane(data)}).items():
            if value:
                self._firsts[what].setdefault(value, name)
        if not is_own_window:
            return
        self._num_of_several += np.size(data.get("WindowCenter") or ()) > 1
        if place(data) is not None:
            series = str(data.get("SeriesInstanceUID", name))
            own, first = self._windows.setdefault(series, (own_window(data), name))
            if own != own_window(data):
                raise UnusableImageError(f"{other_window(own, data)} (of {first})")

    def problems(self) -> list[str]:
        """Return what cannot be used together."""
        if mixed := self._mixed("modality"):
            return [f"it mixes the modalities {mixed}; keep the one that the study is of"]
        if mixed := self._mixed("unit"):
            return [
                f"its values are in different units (RescaleType, Units), {mixed}; keep those in"
                " one"
            ]
        return []

    def notes(self) -> list[str]:
        """Return what may be unintended."""
        notes = []
        if mixed := self._mixed("plane"):
            notes.append(f"it mixes the planes {mixed}; keep the one that the study is of")
        if self._num_of_several:
            notes.append(
                f"{self._num_of_several} scans name several windows, and are shown through the"
                " first; window = [centre, width] under [data] sets one for all"
            )
        return notes

    def _mixed(self, what: str) -> str:
        """Return the values of a property where there are several; else ""."""
        firsts = self._firsts[what]
        if len(firsts) < 2:
            return ""
        return ", ".join(f"{value} ({place})" for value, place in firsts.items())


def _in_order(slices: "list[FileDataset]", *, complete: bool) -> "list[FileDataset]":
    """Sort the slices of a series by position, or by number where no position is given."""
    if len({plane(data) for data in slices}) > 1:
        raise UnusableImageError(
            "has slices in different directions, or some that do not say theirs, as scouts do; keep"
            " those of one series"
        )
    known = [found for data in slices if (found := place(data)) is not None]
    if known and len(known) < len(slices):
        raise UnusableImageError("has slices that do not say where they lie; export it again")
    unit = " mm" if known else ""
    along = known or [float(data.get("InstanceNumber") or 0) for data in slices]
    order = np.argsort(along, kind="stable")
    if complete:
        _check_complete([along[index] for index in order], unit)
    return [slices[index] for index in order]


def _check_complete(places: Sequence[float], unit: str) -> None:
    """Check that slices are equally far apart, none at the position of another."""
    gaps = np.diff(places)
    usual = float(np.median(gaps)) if len(gaps) else 0.0
    if len(gaps) and gaps.min() <= UNEVEN * abs(usual):
        raise UnusableImageError(
            "has two slices at one place; keep one series, or write series under [data]"
        )
    if len(gaps) and gaps.max() > (1 + UNEVEN) * usual:
        raise UnusableImageError(
            f"lacks a slice: two are {gaps.max():g}{unit} apart, most {usual:g}; export it again"
        )


def _files(folder: Path) -> list[Path]:
    """Return every file below a folder except hidden ones and the index of a disc."""
    return [
        file
        for file in files_below(folder)
        if not file.name.startswith(".") and file.name != "DICOMDIR"
    ]


def _folders(folder: Path) -> list[Path]:
    """Return the folders of series: those that hold files themselves."""
    return sorted({file.parent for file in _files(folder)})


def _read(file: Path, *, pixels: bool = True) -> "FileDataset":
    from pydicom import dcmread
    from pydicom.errors import InvalidDicomError
    from pydicom.filereader import read_file_meta_info
    from pydicom.uid import DeflatedExplicitVRLittleEndian

    if not file.is_file():  # a pipe never ends, and a link may be broken
        raise UnusableImageError("is no file that can be read; remove it", is_damaged=True)
    try:
        about = read_file_meta_info(file)
        if about.get("TransferSyntaxUID") == DeflatedExplicitVRLittleEndian:
            _check_unpacked(file, HEADER_BYTES + about.FileMetaInformationGroupLength)
        return dcmread(file, stop_before_pixels=not pixels)
    except UnusableImageError:
        raise
    except InvalidDicomError:
        if _lacks_header(file):
            raise UnusableImageError(
                "lacks DICOM's file header (the preamble and what follows it), so that it does not"
                f" say how its pixels are stored; add it with DCMTK: dcmconv {quote(file.name)}"
                f" {quote(f'{file.name}.new')}",
                is_damaged=True,
            ) from None
        raise UnusableImageError("is no DICOM file; remove it", is_damaged=True) from None
    except Exception as problem:  # noqa: BLE001 - a damaged file may raise anything
        raise cannot_be_read(problem) from None


def _check_unpacked(file: Path, start: int) -> None:
    """Raise UnusableImageError where a deflated file's data, from `start` on, would be too many."""
    unpacker, num_bytes = zlib.decompressobj(-zlib.MAX_WBITS), 0
    with file.open("rb") as opened:
        opened.seek(start)
        while chunk := unpacker.unconsumed_tail or opened.read(CHUNK):
            num_bytes += len(unpacker.decompress(chunk, CHUNK))
            if num_bytes > MOST_UNPACKED:
                raise UnusableImageError(
                    f"unpacks to more than {MOST_UNPACKED // 2**30} GiB; export it again"
                )


def _lacks_header(file: Path) -> bool:
    """Return whether a file holds DICOM data without the header."""
    from pydicom import dcmread

    try:
        found = dcmread(file, stop_before_pixels=True, force=True)
        return any(tag in found for tag in ("SOPClassUID", "SOPInstanceUID", "Rows"))
    except Exception:  # noqa: BLE001 - any bytes may be parsed as DICOM
        return False


def _unit(data: "FileDataset") -> str:
    """Return the unit after rescaling, as far as the file says; "HU" is the default for CT."""
    unit = str(data.get("Units", "") or data.get("RescaleType", "") or "")
    if unit in ("", "US", "UNSPECIFIED"):
        return "HU" if data.get("Modality") == "CT" else "none said"
    return unit
