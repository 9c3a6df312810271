"""The sources of patients: one line for each built-in one; packages add others."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from erosion_client.dataset.sources.data_source import DataSource
from erosion_client.dataset.sources.databases import DuckdbFiles, SqlQuery
from erosion_client.dataset.sources.dicom import DicomImages
from erosion_client.dataset.sources.image_files import ImageFiles
from erosion_client.dataset.sources.nifti import NiftiImages
from erosion_client.dataset.sources.table_file import TableFile
from erosion_common.settings.packages import load_class, open_union

IMAGE_SUFFIXES = ("", ".npz")  # no suffix: a folder


def _inferred(raw: Any) -> Any:
    """Infer `source` from the url, or from the path: a table file, or images."""
    if not isinstance(raw, Mapping) or "source" in raw:
        return raw
    if "url" in raw:
        return {**raw, "source": "sql"}
    if "path" not in raw:  # or misspelt: most hospitals have tables
        return {**raw, "source": "table"}
    suffix = Path(str(raw["path"])).suffix.lower()
    if suffix == ".duckdb":
        return {**raw, "source": "duckdb"}
    return {**raw, "source": "images" if suffix in IMAGE_SUFFIXES else "table"}


_OURS = (TableFile, SqlQuery, DuckdbFiles, ImageFiles, DicomImages, NiftiImages)


def _of_package(raw: Mapping[str, Any]) -> Any:
    """Return a package's source. A site chooses them in its own file, so needs no hash."""
    return load_class("source", str(raw["source"]), None, DataSource)


AnySource = Annotated[
    Annotated[
        TableFile  # table
        | SqlQuery  # sql
        | DuckdbFiles  # duckdb
        | ImageFiles  # images
        | DicomImages  # dicom
        | NiftiImages,  # nifti
        Field(discriminator="source"),
    ],
    *open_union("source", "source", (s.model_fields["source"].default for s in _OURS), _of_package),
    BeforeValidator(_inferred),
]
