"""The interface of a testbed source: options from the study file, and each hospital's patients.

A source says who has which patients; reading the published files and writing a hospital's file are
here.
"""

import csv
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from erosion.simulation.download import DATA_SETS
from erosion_common.errors import DataError, StudyError
from erosion_common.settings.base import Settings
from erosion_common.study.study import Study

Data = Mapping[str, Any]  # [data] of a site file
Indices = NDArray[np.int64]

ROWS: dict[str, int] = {  # of the published tables, with their header: fewer were cut off
    "titanic3.csv": 1310,
    "processed.cleveland.data": 303,
    "processed.hungarian.data": 294,
    "processed.switzerland.data": 123,
    "processed.va.data": 200,
    "brca.csv": 1097,
    "train_test_split.csv": 1089,
    "diabetic_data.csv.gz": 101_767,
}


@dataclass(frozen=True, slots=True)
class PatientTable:
    """One hospital's, as a table."""

    header: Sequence[str]
    rows: Iterable[Sequence[object]]


Arrays = Mapping[str, NDArray[Any]]  # one hospital's, as images with what belongs to each


class SourceBase(Settings):
    """The options of one source, as `testbed.options` of a study file gives them."""

    offered: ClassVar[Sequence[str]] = ()  # its hospitals; (): they may have any name
    patient: ClassVar[str | None] = None  # the column or array that identifies patients

    def contents(
        self, study: Study, data_dir: Path | None
    ) -> Iterator[tuple[str, PatientTable | Arrays]]:
        """Every hospital of `study`, and others if that is simpler. Raises DataError."""
        raise TypeError(f"{type(self).__name__} does not say which patients its hospitals have")

    def write(self, study: Study, folder: Path, data_dir: Path | None) -> Mapping[str, Data]:
        """Write one data file per hospital of `study`, below `folder`/HOSPITAL."""
        if unknown := sorted(set(study.everyone) - set(self.offered or study.everyone)):
            raise StudyError(
                f"hospitals names {', '.join(unknown)}, but its testbed source has"
                f" {', '.join(self.offered)}; name hospitals from that list.",
                where=f"Study {study.name}",
            )
        key = {} if self.patient is None else {"patient": self.patient}
        written = {}
        for hospital, content in self.contents(study, data_dir):
            if hospital in study.everyone:
                path = _write(folder / hospital, content)
                written[hospital] = {"path": str(path.absolute()), **key}
        return written


def _write(folder: Path, content: PatientTable | Arrays) -> Path:
    if isinstance(content, PatientTable):
        write_table(folder / "patients.csv", content.header, content.rows)
        return folder / "patients.csv"
    folder.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = dict(content)
    np.savez(folder / "images.npz", **arrays)
    return folder / "images.npz"


def write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a CSV with a header line, making its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def data_folder(data_dir: Path | None, name: str) -> Path:
    """Return the folder of the data set `name`, which people download once; raises DataError."""
    if data_dir is None:
        raise DataError(
            f"The {name} data are needed, and no data folder is known",
            remedy="Give --data-dir FOLDER or set EROSION_DATA to the folder that holds"
            f" {name}/. {_where_from(name)}",
        )
    folder = data_dir / name
    if not folder.is_dir():
        raise DataError(
            f"There is no folder {folder}",
            remedy=f"Check --data-dir or EROSION_DATA. {_where_from(name)}",
        )
    return folder


def existing_file(folder: Path, file_name: str) -> Path:
    """Return a file of a downloaded data set; raises DataError where it is absent."""
    path = folder / file_name
    if not path.is_file():
        raise DataError(f"The file {path} is missing", remedy=_where_from(folder.name))
    return path


def _where_from(name: str) -> str:
    if name in DATA_SETS:
        return f"`erosion data {name}` downloads what is missing, where there is internet."
    return f"experiments/README.md says where the files of {name}/ come from."


def read_rows(path: Path) -> list[list[str]]:
    """Return the cells of every row of a CSV, with the header; raises DataError."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.reader(file) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        raise DataError(f"{path} cannot be read ({problem})", remedy=_again(path)) from None
    check_complete(path, len(rows))
    for number, row in enumerate(rows, start=1):
        if len(row) != len(rows[0]):
            raise DataError(
                f"{len(row)} cells, expected {len(rows[0])}",
                where=f"{path}, row {number}",
                remedy=_again(path),
            )
    return rows


def check_complete(path: Path, num_rows: int) -> None:
    """Refuse a file that lacks rows of the published one: its figures would be of fewer."""
    if num_rows != ROWS.get(path.name, num_rows) or not num_rows:
        raise DataError(
            f"{path} has {num_rows} rows, expected {ROWS.get(path.name, 'some')}: it was cut off,"
            " or is another file",
            remedy=_again(path),
        )


@contextmanager
def parsing(path: Path) -> Iterator[None]:
    """Around what makes numbers of a file's cells: what it trips over is the file's fault.

    Nothing else belongs into it. Raises DataError.
    """
    try:
        yield
    except (ValueError, KeyError, IndexError) as problem:
        missing = "it lacks " if isinstance(problem, KeyError) else ""
        raise DataError(
            f"{path} is not the table of that name ({missing}{problem})", remedy=_again(path)
        ) from None


def _again(path: Path) -> str:
    name = path.parent.name
    if name in DATA_SETS:
        return f"Delete the file and run `erosion data {name}` again."
    return "Fetch it again."


def read_arrays(path: Path, **rows: tuple[int, ...]) -> list[NDArray[Any]]:
    """Arrays of an npz file, each by its name with the shape of a row: () of a number.

    They have equally many rows, numbers are whole and 0 or more, and rows of another shape are
    pictures, of bytes. Raises DataError.
    """
    unzipping = (OSError, EOFError, zipfile.BadZipFile, zlib.error)
    try:
        with np.load(path, allow_pickle=False) as arrays:
            found = [arrays[name] for name in rows]
    except (*unzipping, ValueError, TypeError, KeyError) as problem:
        raise DataError(
            f"{path} cannot be read ({problem})",
            remedy="experiments/README.md says which arrays it has: make it again.",
        ) from None
    for array, (name, row) in zip(found, rows.items(), strict=True):
        kinds = np.uint8 if row else np.integer
        expected = (*found[0].shape[:1], *row)
        if array.shape != expected or not np.issubdtype(array.dtype, kinds) or np.any(array < 0):
            raise DataError(
                f"{name} holds {array.dtype} of shape {array.shape}, expected whole numbers of 0"
                f" or more, of shape {expected}",
                remedy="experiments/README.md says what it has: make it again.",
                where=path,
            )
    return found
