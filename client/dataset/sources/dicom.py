"""DICOM images, through pydicom: pixels and nothing else of what the files hold."""

import warnings
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field

from erosion.client.dataset.row_hashes import hash_of_image
from erosion.client.dataset.sources.data_source import LabelledImages, files_below
from erosion.client.dataset.sources.dicom_display import padding, shown_otherwise
from erosion.client.dataset.sources.faulty_files import Damaged, FaultyFiles
from erosion.client.dataset.sources.labelled_scans import ScanFolder, Scans
from erosion.client.dataset.sources.pixels import (
    Resize,
    Window,
    check_decoded,
    fitted,
    fitted_volume,
    windowed,
)
from erosion.common.errors import DataError
from erosion.common.tasks.inputs import ImageTask

if TYPE_CHECKING:
    from pydicom import FileDataset
    from pydicom.uid import UID

MOST_VALUES = 2**28  # of one file; a small file can unpack to any size
UNEVEN = 0.1  # of the usual distance between two slices
NEEDED = ("Rows", "Columns", "PhotometricInterpretation", "BitsAllocated", "PixelData")
PLANES = ("sagittal", "coronal", "axial")  # by the patient's axis that is normal to them
GREY = ("MONOCHROME1", "MONOCHROME2")  # 1: small values are white
# Where the rows and the columns of a usual scan of a plane lead: the patient's axis and its sign.
# Axes lead to the left, to the back and to the head.
USUAL = {"axial": {0: 1, 1: 1}, "coronal": {0: 1, 2: -1}, "sagittal": {1: 1, 2: -1}}
NO_IMAGES = ("SEG", "RTSTRUCT", "RTDOSE", "RTPLAN", "PR", "KO", "SR", "REG", "RWV", "FID")
COLOUR = ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT")


class _WrongError(Exception):
    """What is wrong with one scan, and the remedy."""


class DicomImages(ScanFolder):
    """DICOM files in one folder per class, or anywhere below a folder with a table of labels.

    Values are rescaled by each file's slope and intercept and shown through the window. Of the
    other tags only the patient's is used, to keep what belongs to one patient together, and it
    stays here.
    """

    source: Literal["dicom"] = "dicom"
    path: Path = Field(description="A folder.")
    labels: Path | None = Field(
        default=None,
        description="A table with the column `file` and the study's targets. Left out: one "
        "folder per class.",
    )
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
    resize: Resize = Field(
        default="refuse",
        description='What becomes of an image of another size than the study\'s: `"refuse"`: the '
        'data are not accepted. `"stretch"`: it is brought to that size. `"pad"`: so, too, with '
        "its proportions kept, and black around it.",
    )
    patient: str | None = Field(
        default="PatientID",
        min_length=1,
        description="Keyword of the tag that tells patients apart. It is used here alone and "
        "never sent.",
    )

    def read(self, task: ImageTask) -> LabelledImages:
        """The images as the study wants them."""
        self.require("pydicom", "dicom")
        if (self.slice == "all") != task.is_of_volumes:
            wanted, write = ("volumes", '"all"') if task.is_of_volumes else ("images", '"each"')
            raise DataError(
                f"{self.describe()}: the study wants {wanted}; write slice = {write} under [data]."
            )
        scans = self.scans(task, _files if self.slice == "each" else _folders)
        check_decoded(self.path, len(scans.paths) * int(np.prod(task.shape)))
        return self._images(scans, task)

    def _images(self, scans: Scans, task: ImageTask) -> LabelledImages:
        images = np.zeros((len(scans.paths), *task.shape), dtype=np.uint8)
        hashes = np.zeros(len(scans.paths), dtype=np.uint64)
        faulty = FaultyFiles(self.path, self.unreadable)
        patients = np.full(len(scans.paths), "", dtype=object)
        modalities: dict[str, str] = {}  # and the first scan of each
        planes: dict[str, str] = {}
        units: dict[str, str] = {}
        num_of_several = 0  # scans that name several windows
        windows: dict[str, tuple[_OwnWindow, str]] = {}  # of each series, and its first scan
        for index, (path, place) in enumerate(zip(scans.paths, scans.places, strict=True)):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of values that break DICOM's own rules
                    images[index], slices = self._scan(path, task)
                    data = slices[0]
                    pixels = (one.PixelData for one in slices)
                    hashes[index] = hash_of_image(scans.said[index], pixels)
                    patients[index] = self._patient(data)
                    modalities.setdefault(str(data.get("Modality", "unknown")), place)
                    planes.setdefault(_plane(data), place)
                    units.setdefault(_unit(data), place)
                    if self.window == "file":
                        num_of_several += np.size(data.get("WindowCenter") or ()) > 1
                    if self.window == "file" and _place(data) is not None:
                        series = str(data.get("SeriesInstanceUID", place))
                        own, first = windows.setdefault(series, (_own_window(data), place))
                        if own != _own_window(data):
                            raise _WrongError(f"{_other_window(own, data)} (of {first})")
            except _WrongError as problem:
                faulty.add(index, place, problem.args[0])
            except Exception as problem:  # noqa: BLE001 - tags are parsed when they are asked for
                reason = f"cannot be read ({_in_a_line(problem)}); export it again"
                faulty.add(index, place, Damaged(reason))
        if len(modalities) > 1:
            faulty.add_problem(
                f"it mixes the modalities {_each(modalities)}; keep the one that the study is of"
            )
        elif len(units) > 1:
            faulty.add_problem(
                "its values are in different units (RescaleType, Units),"
                f" {_each(units)}; keep those in one"
            )
        kept = faulty.kept(len(scans.paths))
        notes = [*scans.notes, *faulty.notes]
        if len(said := {plane: place for plane, place in planes.items() if plane}) > 1:
            notes.append(f"it mixes the planes {_each(said)}; keep the one that the study is of")
        if num_of_several:
            notes.append(
                f"{num_of_several} scans name several windows, and are shown through the first;"
                " window = [centre, width] under [data] sets one for all"
            )
        keys = None
        if self.patient is not None:
            keys = np.unique(patients[kept].astype(str), return_inverse=True)[1]
        return LabelledImages(
            images[kept],
            scans.targets[kept],
            tuple(scans.places[index] for index in kept.tolist()),
            keys,
            tuple(notes),
            row_hashes=hashes[kept],
            left_out=faulty.left_out,
        )

    def _scan(self, path: Path, task: ImageTask) -> tuple[NDArray[np.uint8], "list[FileDataset]"]:
        """The pixels as the study wants them, and the files with them, in the series' order."""
        slices = [_read(path)] if self.slice == "each" else self._series(path)
        image = (
            fitted_volume(self._stacked(slices), task, self.resize)
            if self.slice == "all"
            else fitted(self._grey_or_colour(slices[0]), task, self.resize)
        )
        if isinstance(image, str):
            raise _WrongError(image)
        return image, slices

    def _patient(self, data: "FileDataset") -> str:
        if self.patient is None:
            return ""
        found = str(data.get(self.patient, "")).strip()
        if not found:
            raise _WrongError(
                f"lacks the tag {self.patient}, which tells patients apart; name another as patient"
                " under [data]"
            )
        return found

    def _grey_or_colour(self, data: "FileDataset") -> Image.Image:
        """The pixels with 8 bits: (h, w) grey or (h, w, 3) colour."""
        modality = str(data.get("Modality", ""))
        kind = data.get("SOPClassUID")
        if modality in NO_IMAGES or (kind is not None and "Segmentation" in kind.name):
            raise _WrongError(
                f"is no image but of modality {modality or 'SEG'}, such as a segmentation; keep"
                " such files in another folder"
            )
        missing = [tag for tag in NEEDED if tag not in data]
        if missing and "PixelData" in missing and kind is not None and "Image" not in kind.name:
            raise _unreadable(f"is no image but {kind.name}; remove it")
        if missing:
            raise _unreadable(f"lacks the tags {', '.join(missing)}; export it again, with pixels")
        photometric = str(data.PhotometricInterpretation)
        if photometric not in (*GREY, *COLOUR):
            raise _WrongError(f"is {photometric}; export it as MONOCHROME2 or RGB")
        if int(data.get("NumberOfFrames", 1) or 1) > 1:
            raise _WrongError(f"has {data.NumberOfFrames} frames; export one file per frame")
        size = int(data.Rows) * int(data.Columns) * int(data.get("SamplesPerPixel", 1) or 1)
        if size > MOST_VALUES:
            raise _WrongError(
                f"says that it has {data.Columns} x {data.Rows} pixels; export it again"
            )
        if why := shown_otherwise(data, photometric, may_stretch=self.resize == "stretch"):
            raise _WrongError(why)
        values = _decoded(data)
        if photometric in COLOUR:
            if values.dtype != np.uint8:
                raise _WrongError("has more than 8 bits per colour; export it with 8")
            return Image.fromarray(_turned(values, data))
        grey = self._windowed(data, values)
        if photometric == "MONOCHROME1":
            grey = 255 - grey
        grey[padding(data, values)] = 0
        return Image.fromarray(_turned(grey, data))

    def _windowed(self, data: "FileDataset", values: NDArray[Any]) -> NDArray[np.uint8]:
        from pydicom.pixels.processing import apply_modality_lut

        slope, intercept = (data.get(tag) for tag in ("RescaleSlope", "RescaleIntercept"))
        if (slope is None) != (intercept is None) or slope == 0:
            raise _WrongError(
                f"says RescaleSlope = {slope} and RescaleIntercept = {intercept}, by which nobody"
                " can rescale it; export it again"
            )
        measured = np.asarray(apply_modality_lut(values, data), dtype=np.float64)
        if self.window != "file":
            return windowed(measured, self.window)
        if (own := _own_window(data)) is not None:
            return windowed(measured, _as_meant(own, data))
        is_byte = values.dtype == np.uint8 and data.get("BitsStored", 8) == 8
        if is_byte and np.array_equal(measured, values) and "VOILUTSequence" not in data:
            return values.copy()  # ultrasound and photographs: grey levels already
        has = "a table in place of a window (VOILUTSequence)"
        if "VOILUTSequence" not in data:
            has = "no window (WindowCenter, WindowWidth)"
        raise _WrongError(
            f"has {has}; write window = [centre, width] under [data], the same at every hospital of"
            " the study"
        )

    def _stacked(self, slices: "list[FileDataset]") -> NDArray[np.uint8]:
        """All slices of a series as grey levels: (d, h, w)."""
        planes = [np.asarray(self._grey_or_colour(data).convert("L")) for data in slices]
        sizes = sorted({plane.shape for plane in planes})
        if len(sizes) > 1:
            found = ", ".join(f"{width} x {height}" for height, width in sizes)
            raise _WrongError(f"has slices of {found} pixels; keep those of one series")
        return np.stack(planes)

    def _series(self, folder: Path) -> "list[FileDataset]":
        """The folder's only series, or the one that is asked for: its middle, or all in order."""
        if not folder.is_dir():
            raise _WrongError('is no folder of a series; write slice = "each" under [data]')
        slices = [_read(file, pixels=False) for file in _files(folder)]
        slices = [
            s for s in slices if fnmatchcase(str(s.get("SeriesDescription", "")), self.series)
        ]
        if not slices:
            raise _WrongError(f"has no series that fits series = {self.series!r}; correct it")
        found = {str(s.get("SeriesInstanceUID", "")): s for s in slices}
        if len(found) > 1:
            names = sorted({str(s.get("SeriesDescription", "unnamed")) for s in found.values()})
            raise _WrongError(
                f"holds {len(found)} series ({', '.join(names)}); keep one, or write series ="
                ' "ITS NAME" under [data] (* is a wildcard)'
            )
        ordered = _in_order(slices, complete=self.slice == "all")
        if self.window == "file":
            for data in ordered:
                if _own_window(data) != _own_window(ordered[0]):
                    raise _WrongError(_other_window(_own_window(ordered[0]), data))
        if len(units := {_unit(data) for data in ordered}) > 1:
            raise _WrongError(
                f"has slices in different units ({', '.join(sorted(units))}); keep those in one"
            )
        if self.slice == "middle":
            ordered = [ordered[len(ordered) // 2]]
        return [_read(Path(str(data.filename))) for data in ordered]


def _unreadable(wrong: str) -> _WrongError:
    """Of a scan of which nothing can be seen."""
    return _WrongError(Damaged(wrong))


def _each(found: dict[str, str]) -> str:
    return ", ".join(f"{name} ({place})" for name, place in found.items())


def _in_order(slices: "list[FileDataset]", *, complete: bool) -> "list[FileDataset]":
    """The slices of a series by their places, or by their numbers where none says its place."""
    if len({_plane(data) for data in slices}) > 1:
        raise _WrongError(
            "has slices in different directions, or some that do not say theirs, as scouts do; keep"
            " those of one series"
        )
    places = [_place(data) for data in slices]
    known = [place for place in places if place is not None]
    if known and len(known) < len(slices):
        raise _WrongError("has slices that do not say where they lie; export it again")
    unit = " mm" if known else ""
    along = known or [float(data.get("InstanceNumber") or 0) for data in slices]
    order = np.argsort(along, kind="stable")
    if complete:
        _check_complete([along[index] for index in order], unit)
    return [slices[index] for index in order]


def _check_complete(places: Sequence[float], unit: str) -> None:
    """Slices lie at equal distances, none at the place of another."""
    gaps = np.diff(places)
    usual = float(np.median(gaps)) if len(gaps) else 0.0
    if len(gaps) and gaps.min() <= UNEVEN * abs(usual):
        raise _WrongError(
            "has two slices at one place; keep one series, or write series under [data]"
        )
    if len(gaps) and gaps.max() > (1 + UNEVEN) * usual:
        raise _WrongError(
            f"lacks a slice: two are {gaps.max():g}{unit} apart, most {usual:g}; export it again"
        )


def _files(folder: Path) -> list[Path]:
    """Every file below a folder but hidden ones and the index of a disc."""
    return [
        file
        for file in files_below(folder)
        if not file.name.startswith(".") and file.name != "DICOMDIR"
    ]


def _folders(folder: Path) -> list[Path]:
    """The folders of series: those that hold files themselves."""
    return sorted({file.parent for file in _files(folder)})


def _read(file: Path, *, pixels: bool = True) -> "FileDataset":
    from pydicom import dcmread
    from pydicom.errors import InvalidDicomError

    if not file.is_file():  # a pipe never ends, and a link may lead nowhere
        raise _unreadable("is no file that can be read; remove it")
    try:
        return dcmread(file, stop_before_pixels=not pixels)
    except InvalidDicomError:
        if _lacks_header(file):
            raise _unreadable(
                "lacks DICOM's file header (the preamble and what follows it), so that it does not"
                f" say how its pixels are stored; add it with DCMTK: dcmconv {quote(file.name)}"
                f" {quote(f'{file.name}.new')}"
            ) from None
        raise _unreadable("is no DICOM file; remove it") from None
    except Exception as problem:  # noqa: BLE001 - a damaged file may raise anything
        raise _unreadable(f"cannot be read ({_in_a_line(problem)}); export it again") from None


def _lacks_header(file: Path) -> bool:
    """Whether a file holds DICOM's data without the header that says so."""
    from pydicom import dcmread

    try:
        found = dcmread(file, stop_before_pixels=True, force=True)
        return any(tag in found for tag in ("SOPClassUID", "SOPInstanceUID", "Rows"))
    except Exception:  # noqa: BLE001 - anything may be read as DICOM so
        return False


def _decoded(data: "FileDataset") -> NDArray[Any]:
    """The stored values (h, w) or (h, w, 3), colours as RGB."""
    from pydicom.pixels.utils import pixel_array

    syntax = data.file_meta.get("TransferSyntaxUID") if hasattr(data, "file_meta") else None
    if syntax is None:
        raise _unreadable("does not say its transfer syntax; export it again")
    try:
        return pixel_array(data)
    except Exception as problem:  # noqa: BLE001 - a damaged file may raise anything
        if syntax.is_compressed and not _can_decode(syntax):
            raise _WrongError(
                f"is compressed ({syntax.name}), and what decodes that is not installed; decompress"
                " it (gdcmconv --raw, dcmdjpeg), or install pylibjpeg's or GDCM's decoders"
            ) from None
        raise _unreadable(
            f"has pixels that cannot be read ({_in_a_line(problem)}); export it again"
        ) from None


def _can_decode(syntax: "UID") -> bool:
    from pydicom.pixels.decoders.base import get_decoder

    try:
        return get_decoder(syntax).is_available
    except NotImplementedError:
        return False


def _in_a_line(problem: Exception) -> str:
    lines = str(problem).strip().splitlines()
    return lines[0][:200] if lines else type(problem).__name__


_OwnWindow = tuple[float, float] | None  # centre and width; None: unsaid


def _own_window(data: "FileDataset") -> _OwnWindow:
    """The window that a file itself names, the first of several."""
    centre, width = _first(data.get("WindowCenter")), _first(data.get("WindowWidth"))
    return None if centre is None or width is None or width <= 0 else (centre, width)


def _as_meant(window: Window, data: "FileDataset") -> Window:
    """A file's own window as `windowed` has it, by the file's function (PS3.3 C.11.2.1)."""
    centre, width = window
    function = str(data.get("VOILUTFunction", "") or "LINEAR")
    if function == "LINEAR" and width >= 1:
        return centre - 0.5, max(width - 1, np.finfo(np.float64).tiny)
    if function in ("LINEAR", "LINEAR_EXACT"):
        return window
    raise _WrongError(
        f"has a window of the form {function}; write window = [centre, width] under [data], the"
        " same at every hospital of the study"
    )


def _other_window(own: _OwnWindow, data: "FileDataset") -> str:
    """What is said of a volume in which each slice would be shown through a window of its own."""
    first, other = (
        "none" if window is None else f"[{window[0]:g}, {window[1]:g}]"
        for window in (own, _own_window(data))
    )
    return (
        f"has slices with different windows ({first} and {other}), so that what is bright in one is"
        " dark in another; write window = [centre, width] under [data], the same at every hospital"
        " of the study"
    )


def _unit(data: "FileDataset") -> str:
    """Of the values after rescaling, as far as the file says; "HU" is what CT has by default."""
    unit = str(data.get("Units", "") or data.get("RescaleType", "") or "")
    if unit in ("", "US", "UNSPECIFIED"):
        return "HU" if data.get("Modality") == "CT" else "none said"
    return unit


def _turned(pixels: NDArray[np.uint8], data: "FileDataset") -> NDArray[np.uint8]:
    """The pixels (h, w, ...) as a scan of their plane usually lies, by its rows and columns."""
    directions = _directions(data)
    if directions is None:
        return pixels
    main = np.abs(directions).argmax(axis=1).tolist()
    usual = USUAL[_plane(data)]
    if sorted(main) != sorted(usual):
        return pixels  # far between two planes
    if main != list(usual):
        pixels, directions = pixels.swapaxes(0, 1), directions[::-1]
    right, down = (
        np.sign(directions[i, axis]) == sign for i, (axis, sign) in enumerate(usual.items())
    )
    pixels = pixels if right else pixels[:, ::-1]
    return np.ascontiguousarray(pixels if down else pixels[::-1])


def _first(value: Any) -> float | None:
    """The first of one or several windows; None where there is none."""
    try:
        return float(np.atleast_1d(value)[0])
    except (TypeError, ValueError, IndexError):
        return None


def _directions(data: "FileDataset") -> NDArray[np.float64] | None:
    """Of an image's rows and columns in the patient (2, 3); None where the file does not say."""
    try:
        found = np.array(data.ImageOrientationPatient, dtype=float).reshape(2, 3)
    except (AttributeError, TypeError, ValueError):
        return None
    return found if np.isfinite(found).all() and found.any() else None


def _place(data: "FileDataset") -> float | None:
    """Where a slice lies along its normal, in mm; None where the file does not say."""
    directions = _directions(data)
    try:
        position = np.array(data.ImagePositionPatient, dtype=float).reshape(3)
    except (AttributeError, TypeError, ValueError):
        return None
    if directions is None:
        return None
    normal = np.cross(*directions)
    # Turned images (see `_turned`) lie in the order of usual ones.
    usual = np.cross(*(sign * np.eye(3)[axis] for axis, sign in USUAL[_plane(data)].items()))
    return float(normal @ position) * (1.0 if normal @ usual >= 0 else -1.0)


def _plane(data: "FileDataset") -> str:
    """The plane that an image is nearest to; "" where the file does not say."""
    directions = _directions(data)
    if directions is None:
        return ""
    return PLANES[int(np.abs(np.cross(*directions)).argmax())]
