"""The pixels of one DICOM file, displayed as it asks: each request is honoured or refused."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from erosion_client.dataset.sources.labelled_images import (
    UnusableImageError,
    Window,
    are_square,
    cannot_be_read,
    distorted,
    windowed,
)

if TYPE_CHECKING:
    from pydicom import FileDataset
    from pydicom.uid import UID

MOST_VALUES = 2**28  # of one file; a small file can unpack to any size
NEEDED = ("Rows", "Columns", "PhotometricInterpretation", "BitsAllocated", "PixelData")
GREY = {"MONOCHROME1": "INVERSE", "MONOCHROME2": "IDENTITY"}  # and the PresentationLUTShape
COLOUR = ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT")
NO_IMAGES = ("SEG", "RTSTRUCT", "RTDOSE", "RTPLAN", "PR", "KO", "SR", "REG", "RWV", "FID")
LARGEST_MEASURED = 1e12  # in any unit; beyond, every picture would be of one grey
SPACINGS = ("PixelSpacing", "ImagerPixelSpacing", "NominalScannedPixelSpacing", "PixelAspectRatio")
TABLES = ("PresentationLUTSequence", "RedPaletteColorLookupTableDescriptor")
PLANES = ("sagittal", "coronal", "axial")  # by the patient's axis that is normal to them
# Where the rows and columns of a standard scan of a plane point: the patient's axis and its sign.
# Axes point to the left, the back and the head.
USUAL = {"axial": {0: 1, 1: 1}, "coronal": {0: 1, 2: -1}, "sagittal": {1: 1, 2: -1}}
SET_WINDOW = "write window = [centre, width] under [data], the same at every hospital of the study"


def shown(
    data: "FileDataset", window: Window | Literal["file"], *, may_stretch: bool
) -> Image.Image:
    """Return the pixels with 8 bits, grey or RGB, in their plane's standard orientation."""
    photometric = _check_tags(data, may_stretch=may_stretch)
    values = _decoded(data)
    if photometric in COLOUR:
        if values.dtype != np.uint8:
            raise UnusableImageError("has more than 8 bits per colour; export it with 8")
        return Image.fromarray(_turned(values, data))
    grey = _windowed(data, values, window)
    if photometric == "MONOCHROME1":  # small values are white
        grey = 255 - grey
    grey[_padding(data, values)] = 0
    return Image.fromarray(_turned(grey, data))


def _check_tags(data: "FileDataset", *, may_stretch: bool) -> str:
    """Return the photometric interpretation of a displayable file; else UnusableImageError."""
    modality, kind = str(data.get("Modality", "")), data.get("SOPClassUID")
    if modality in NO_IMAGES or (kind is not None and "Segmentation" in kind.name):
        raise UnusableImageError(
            f"is no image but of modality {modality or 'SEG'}, such as a segmentation; keep such"
            " files in another folder"
        )
    if missing := [tag for tag in NEEDED if tag not in data]:
        wrong = f"lacks the tags {', '.join(missing)}; export it again, with pixels"
        if "PixelData" in missing and kind is not None and "Image" not in kind.name:
            wrong = f"is no image but {kind.name}; remove it"
        raise UnusableImageError(wrong, is_damaged=True)
    if problem := next(_problems(data, may_stretch=may_stretch), ""):
        raise UnusableImageError(problem)
    return str(data.PhotometricInterpretation)


def _problems(data: "FileDataset", *, may_stretch: bool) -> Iterator[str]:
    """Yield why a file with the needed tags cannot be displayed as it asks."""
    photometric = str(data.PhotometricInterpretation)
    if "LOCALIZER" in str(data.get("ImageType", "")).upper():
        yield "is a localizer, by which a scan was planned; keep such files in another folder"
    if photometric not in (*GREY, *COLOUR):
        yield f"is {photometric}; export it as MONOCHROME2 or RGB"
    if int(data.get("NumberOfFrames", 1) or 1) > 1:
        yield f"has {data.NumberOfFrames} frames; export one file per frame"
    if int(data.Rows) * int(data.Columns) * int(data.get("SamplesPerPixel", 1) or 1) > MOST_VALUES:
        yield f"says that it has {data.Columns} x {data.Rows} pixels; export it again"
    if data.BitsAllocated == 1:
        yield "holds single bits, as masks do, and no grey levels; keep masks in another folder"
    if "PerFrameFunctionalGroupsSequence" in data or "SharedFunctionalGroupsSequence" in data:
        yield (
            "is of an enhanced kind, which says for each frame how it is shown; export it as one"
            " classic file per frame"
        )
    stored, high = data.get("BitsStored"), data.get("HighBit")
    if stored is not None and high is not None and high != stored - 1:
        yield f"keeps its {stored} bits below bit {high}, as nobody does any more; export it again"
    shape = str(data.get("PresentationLUTShape", "") or "")
    if shape and shape != GREY.get(photometric, shape):
        yield (
            f"says {photometric} and PresentationLUTShape {shape}, which contradict each other;"
            " export it again"
        )
    if table := next((tag for tag in TABLES if tag in data), ""):
        yield f"is shown through a separate table ({table}); export it as plain grey levels"
    if not may_stretch and (spacing := _not_square(data)):
        yield distorted(spacing)


def _not_square(data: "FileDataset") -> str:
    """Return how a file says that its pixels are not square; "" where they are."""
    for tag in SPACINGS:
        try:
            down, across = (float(side) for side in data.get(tag) or ())
        except (TypeError, ValueError):
            continue
        if not are_square(down, across):
            return f"{tag} {down:g}, {across:g}"
    return ""


def _padding(data: "FileDataset", values: NDArray[Any]) -> NDArray[np.bool_]:
    """Return the stored values (h, w) outside the picture, which are not measurements."""
    low = data.get("PixelPaddingValue")
    if not isinstance(low, int):
        return np.zeros(values.shape, dtype=bool)
    other = data.get("PixelPaddingRangeLimit")
    ends = sorted((low, other if isinstance(other, int) else low))
    outside: NDArray[np.bool_] = (values >= ends[0]) & (values <= ends[1])
    return outside


def _windowed(
    data: "FileDataset", values: NDArray[Any], window: Window | Literal["file"]
) -> NDArray[np.uint8]:
    from pydicom.pixels.processing import apply_modality_lut

    slope, intercept = (data.get(tag) for tag in ("RescaleSlope", "RescaleIntercept"))
    if (slope is None) != (intercept is None) or slope == 0:
        raise UnusableImageError(
            f"says RescaleSlope = {slope} and RescaleIntercept = {intercept}, by which nobody"
            " can rescale it; export it again"
        )
    measured = np.asarray(apply_modality_lut(values, data), dtype=np.float64)
    if not np.abs(measured).max(initial=0.0) <= LARGEST_MEASURED:
        raise UnusableImageError(
            f"says RescaleSlope = {slope} and RescaleIntercept = {intercept}, by which it has"
            f" values beyond {LARGEST_MEASURED:g}; export it again"
        )
    if window != "file":
        return windowed(measured, window)
    if (own := own_window(data)) is not None:
        return windowed(measured, _as_meant(own, data))
    is_byte = values.dtype == np.uint8 and data.get("BitsStored", 8) == 8
    if is_byte and np.array_equal(measured, values) and "VOILUTSequence" not in data:
        return values.copy()  # ultrasound and photographs: grey levels already
    has = "a table in place of a window (VOILUTSequence)"
    if "VOILUTSequence" not in data:
        has = "no window (WindowCenter, WindowWidth)"
    raise UnusableImageError(f"has {has}; {SET_WINDOW}")


OwnWindow = tuple[float, float] | None  # centre and width; None: not given


def own_window(data: "FileDataset") -> OwnWindow:
    """Return the window that a file itself names, the first of several."""
    centre, width = _first(data.get("WindowCenter")), _first(data.get("WindowWidth"))
    return None if centre is None or width is None or width <= 0 else (centre, width)


def _as_meant(window: Window, data: "FileDataset") -> Window:
    """Return a file's own window as `windowed` has it, by the file's function (PS3.3 C.11.2.1)."""
    centre, width = window
    function = str(data.get("VOILUTFunction", "") or "LINEAR")
    if function == "LINEAR" and width >= 1:
        return centre - 0.5, max(width - 1, np.finfo(np.float64).tiny)
    if function in ("LINEAR", "LINEAR_EXACT"):
        return window
    raise UnusableImageError(f"has a window of the form {function}; {SET_WINDOW}")


def other_window(own: OwnWindow, data: "FileDataset") -> str:
    """Return the problem with a volume in which each slice has a different window."""
    first, other = (
        "none" if window is None else f"[{window[0]:g}, {window[1]:g}]"
        for window in (own, own_window(data))
    )
    return (
        f"has slices with different windows ({first} and {other}), so that what is bright in one is"
        f" dark in another; {SET_WINDOW}"
    )


def _decoded(data: "FileDataset") -> NDArray[Any]:
    """Return the stored values (h, w) or (h, w, 3), colours as RGB."""
    from pydicom.pixels.utils import pixel_array

    syntax = data.file_meta.get("TransferSyntaxUID") if hasattr(data, "file_meta") else None
    if syntax is None:
        raise UnusableImageError(
            "does not say its transfer syntax; export it again", is_damaged=True
        )
    try:
        return pixel_array(data)
    except Exception as problem:  # noqa: BLE001 - a damaged file may raise anything
        if syntax.is_compressed and not _can_decode(syntax):
            raise UnusableImageError(
                f"is compressed ({syntax.name}), and what decodes that is not installed; decompress"
                " it (gdcmconv --raw, dcmdjpeg), or install pylibjpeg's or GDCM's decoders"
            ) from None
        raise cannot_be_read(problem, "has pixels that ") from None


def _can_decode(syntax: "UID") -> bool:
    from pydicom.pixels.decoders.base import get_decoder

    try:
        return get_decoder(syntax).is_available
    except NotImplementedError:
        return False


def _turned(pixels: NDArray[np.uint8], data: "FileDataset") -> NDArray[np.uint8]:
    """Turn the pixels (h, w, ...) to their plane's standard orientation."""
    directions = _directions(data)
    if directions is None:
        return pixels
    main = np.abs(directions).argmax(axis=1).tolist()
    usual = USUAL[plane(data)]
    if sorted(main) != sorted(usual):
        return pixels  # halfway between two planes
    if main != list(usual):
        pixels, directions = pixels.swapaxes(0, 1), directions[::-1]
    right, down = (
        np.sign(directions[i, axis]) == sign for i, (axis, sign) in enumerate(usual.items())
    )
    pixels = pixels if right else pixels[:, ::-1]
    return np.ascontiguousarray(pixels if down else pixels[::-1])


def _first(value: Any) -> float | None:
    """Return the first of one or several windows; None where there is none that can be shown."""
    try:
        found = float(np.atleast_1d(value)[0])
    except (TypeError, ValueError, IndexError):
        return None
    return found if abs(found) <= LARGEST_MEASURED else None  # nor where it is NaN


def _directions(data: "FileDataset") -> NDArray[np.float64] | None:
    """Return the directions of rows and columns in the patient (2, 3); None where unknown."""
    try:
        found = np.array(data.ImageOrientationPatient, dtype=float).reshape(2, 3)
    except (AttributeError, TypeError, ValueError):
        return None
    return found if np.isfinite(found).all() and found.any() else None


def place(data: "FileDataset") -> float | None:
    """Return a slice's position along its normal, in mm; None where the file does not say."""
    directions = _directions(data)
    try:
        position = np.array(data.ImagePositionPatient, dtype=float).reshape(3)
    except (AttributeError, TypeError, ValueError):
        return None
    if directions is None:
        return None
    normal = np.cross(*directions)
    # Turned images (see `_turned`) are in the order of standard ones.
    usual = np.cross(*(sign * np.eye(3)[axis] for axis, sign in USUAL[plane(data)].items()))
    return float(normal @ position) * (1.0 if normal @ usual >= 0 else -1.0)


def plane(data: "FileDataset") -> str:
    """Return the plane that an image is nearest to; "" where the file does not say."""
    directions = _directions(data)
    if directions is None:
        return ""
    return PLANES[int(np.abs(np.cross(*directions)).argmax())]
