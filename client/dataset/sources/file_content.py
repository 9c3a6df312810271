"""What a data file holds, unpacked where it is compressed."""

import gzip
import zipfile
import zlib
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path, PurePath
from typing import IO, BinaryIO

from erosion.common.errors import DataError

MAX_FILE_BYTES = 4 * 2**30  # a file beyond this is a mistake, not a hospital
CHUNK = 1 << 20  # bytes
PACKED = (".gz", ".zip")
CUT_OFF = "was cut off. Export it again."


@dataclass(frozen=True, slots=True)
class FileContent:
    """A file's bytes: on the disk, or in memory where they were packed."""

    path: Path  # as messages name it
    suffix: str  # of what is in it, such as ".csv"
    unpacked: bytes | None = None

    def __str__(self) -> str:
        return str(self.path)

    def open(self) -> BinaryIO:
        """The bytes, from the first."""
        return self.path.open("rb") if self.unpacked is None else BytesIO(self.unpacked)

    @property
    def num_bytes(self) -> int:
        """How many there are."""
        return self.path.stat().st_size if self.unpacked is None else len(self.unpacked)


def suffix_of(path: PurePath) -> str:
    """What tells a file's format: ".csv" of patients.CSV and of patients.csv.gz."""
    suffix = path.suffix.lower()
    return path.with_suffix("").suffix.lower() if suffix == ".gz" else suffix


def stem_of(path: PurePath) -> str:
    """A file's name without what tells its format."""
    return path.with_suffix("").stem if path.suffix.lower() == ".gz" else path.stem


def content_of(path: Path) -> FileContent:
    """What is in an ordinary file; raises DataError where it is empty, too large or damaged."""
    num_bytes = path.stat().st_size
    if num_bytes == 0:
        raise DataError(f"Data file {path} is empty. Export the patients into it.")
    _check_size(path, num_bytes)
    packed = path.suffix.lower()
    try:
        if packed == ".gz":
            with gzip.open(path) as file:
                found = FileContent(path, suffix_of(path), _read(path, file))
        elif packed == ".zip":
            found = _only_member(path)
        else:
            return FileContent(path, suffix_of(path))
    except EOFError:
        raise DataError(f"Data file {path} {CUT_OFF}") from None
    except (OSError, zlib.error, zipfile.BadZipFile, NotImplementedError, RuntimeError) as problem:
        raise DataError(
            f"Data file {path} cannot be unpacked: {problem}. Export it again."
        ) from None
    if not found.num_bytes:
        raise DataError(f"Data file {path} is empty. Export the patients into it.")
    return found


def _only_member(path: Path) -> FileContent:
    with zipfile.ZipFile(path) as archive:
        members = [
            member
            for member in archive.infolist()
            if not member.is_dir()
            and not PurePath(member.filename).name.startswith(".")
            and not member.filename.startswith("__MACOSX/")
        ]
        if len(members) != 1:
            names = ", ".join(member.filename for member in members[:5]) or "none"
            raise DataError(
                f"Data file {path} holds {len(members)} files ({names}). Pack one table alone, or"
                " unpack it and give the table."
            )
        if members[0].flag_bits & 1:
            raise DataError(f"Data file {path} is encrypted. Unpack it, and give the table.")
        with archive.open(members[0]) as file:
            return FileContent(path, suffix_of(PurePath(members[0].filename)), _read(path, file))


def _read(path: Path, file: gzip.GzipFile | IO[bytes]) -> bytes:
    """All of it, but no more than is ever read: a small file can unpack to any size."""
    found = bytearray()
    while chunk := file.read(CHUNK):
        found += chunk
        _check_size(path, len(found))
    return bytes(found)


def _check_size(path: Path, num_bytes: int) -> None:
    if num_bytes > MAX_FILE_BYTES:
        raise DataError(
            f"Data file {path} has {num_bytes / 2**30:.1f} GiB, more than the"
            f" {MAX_FILE_BYTES // 2**30} GiB that are read. Export only the study's columns."
        )
