"""DICOM and NIfTI files of one's own making."""

from pathlib import Path
from typing import Any

import nibabel
import numpy as np
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

SERIES = generate_uid()
NAME = "Quillfeather^Jane"  # a word of no page


def write_dicom(path: Path, values: Any = None, **tags: Any) -> Path:
    """A CT slice of 6 x 8 pixels; a tag that is None is left out."""
    stored = np.full((6, 8), 1064, np.uint16) if values is None else values
    data = Dataset()
    data.file_meta = FileMetaDataset()
    data.file_meta.MediaStorageSOPClassUID = CTImageStorage
    data.file_meta.MediaStorageSOPInstanceUID = generate_uid()
    data.file_meta.TransferSyntaxUID = tags.pop("syntax", ExplicitVRLittleEndian)
    data.SOPClassUID = CTImageStorage
    data.SOPInstanceUID = data.file_meta.MediaStorageSOPInstanceUID
    data.PatientName = NAME
    wanted = {
        "PatientID": "p1",
        "Modality": "CT",
        "SeriesInstanceUID": SERIES,
        "Rows": stored.shape[0],
        "Columns": stored.shape[1],
        "PhotometricInterpretation": "MONOCHROME2" if stored.ndim == 2 else "RGB",
        "SamplesPerPixel": 1 if stored.ndim == 2 else 3,
        "PlanarConfiguration": None if stored.ndim == 2 else 0,
        "BitsAllocated": 8 * stored.itemsize,
        "BitsStored": 8 * stored.itemsize,
        "HighBit": 8 * stored.itemsize - 1,
        "PixelRepresentation": 0,
        "RescaleSlope": 1 if stored.itemsize > 1 else None,
        "RescaleIntercept": -1024 if stored.itemsize > 1 else None,
        "PixelData": stored.tobytes(),
        **tags,
    }
    for tag, value in wanted.items():
        if value is not None:
            setattr(data, tag, value)
    path.parent.mkdir(parents=True, exist_ok=True)
    data.save_as(path, enforce_file_format=True)
    return path


def write_nifti(path: Path, values: Any, affine: Any = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    made: Any = nibabel.Nifti1Image
    nibabel.save(made(values, np.eye(4) if affine is None else affine), path)
