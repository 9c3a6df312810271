"""What a DICOM file says of how it is to be shown: each is honoured, or refused in a sentence."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pydicom import FileDataset

NOT_SQUARE = 0.01  # of the sides of a pixel
SPACINGS = ("PixelSpacing", "ImagerPixelSpacing", "NominalScannedPixelSpacing", "PixelAspectRatio")
SHAPES = {"MONOCHROME1": "INVERSE", "MONOCHROME2": "IDENTITY"}


def shown_otherwise(data: "FileDataset", photometric: str, *, may_stretch: bool) -> str:
    """Why an image would not be shown as its file wants it, with the remedy; "" where it would."""
    if data.get("BitsAllocated") == 1:
        return "holds single bits, as masks do, and no grey levels; keep masks in another folder"
    if "PerFrameFunctionalGroupsSequence" in data or "SharedFunctionalGroupsSequence" in data:
        return (
            "is of an enhanced kind, which says for each frame how it is shown; export it as one"
            " classic file per frame"
        )
    stored, high = data.get("BitsStored"), data.get("HighBit")
    if stored is not None and high is not None and high != stored - 1:
        return f"keeps its {stored} bits below bit {high}, as nobody does any more; export it again"
    shape = str(data.get("PresentationLUTShape", "") or "")
    if photometric in SHAPES and shape and shape != SHAPES[photometric]:
        return (
            f"says {photometric} and PresentationLUTShape {shape}, which contradict each other;"
            " export it again"
        )
    for tag in ("PresentationLUTSequence", "RedPaletteColorLookupTableDescriptor"):
        if tag in data:
            return f"is shown through a table of its own ({tag}); export it as plain grey levels"
    if not may_stretch and (spacing := _not_square(data)):
        return (
            f"has pixels that are not square ({spacing}), and would be shown distorted; resample"
            ' it, or write resize = "stretch" under [data]'
        )
    return ""


def _not_square(data: "FileDataset") -> str:
    """How a file says that its pixels are taller or wider; "" where they are square."""
    for tag in SPACINGS:
        try:
            down, across = (float(side) for side in data.get(tag) or ())
        except (TypeError, ValueError):
            continue
        if down > 0 and across > 0 and abs(down - across) > NOT_SQUARE * max(down, across):
            return f"{tag} {down:g}, {across:g}"
    return ""


def padding(data: "FileDataset", values: NDArray[Any]) -> NDArray[np.bool_]:
    """The stored values (h, w) that lie outside of the picture and are no measurements."""
    low = data.get("PixelPaddingValue")
    if not isinstance(low, int):
        return np.zeros(values.shape, dtype=bool)
    other = data.get("PixelPaddingRangeLimit")
    ends = sorted((low, other if isinstance(other, int) else low))
    outside: NDArray[np.bool_] = (values >= ends[0]) & (values <= ends[1])
    return outside
