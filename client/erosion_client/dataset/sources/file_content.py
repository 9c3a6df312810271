"""The unpacked content of a data file, and its encoding: Unicode, or asked for; never guessed."""

import codecs
import gzip
import re
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path, PurePath
from typing import IO, BinaryIO

from erosion_common.errors import DataError

MAX_FILE_BYTES = 4 * 2**30  # a file beyond this is a mistake, not a hospital
CHUNK = 1 << 20  # bytes
CUT_OFF = "was cut off. Export it again."
ASK = "set encoding under [data] (--encoding where a draft is made)"
# Encodings in which a word of text that is in no UTF is shown, for a person to choose.
ENCODINGS = (
    *("cp1252", "iso8859-15", "cp1250", "iso8859-2", "cp1254", "cp1257", "mac-roman", "cp850"),
    *("cp1251", "koi8-r", "cp1253", "cp1255", "cp1256"),
    *("cp932", "euc_jp", "gb18030", "big5", "cp949"),
)
LONGEST_WORD = 20  # characters


@dataclass(frozen=True, slots=True)
class FileContent:
    """A file's bytes: on the disk, or in memory where they were packed."""

    path: Path  # name for messages
    suffix: str  # of the unpacked content, such as ".csv"
    unpacked: bytes | None = None

    def __str__(self) -> str:
        return str(self.path)

    def open(self) -> BinaryIO:
        """Open the bytes at the start."""
        return self.path.open("rb") if self.unpacked is None else BytesIO(self.unpacked)

    @property
    def num_bytes(self) -> int:
        """Number of bytes."""
        return self.path.stat().st_size if self.unpacked is None else len(self.unpacked)


def suffix_of(path: PurePath) -> str:
    """Return the suffix of a file's format: ".csv" for patients.CSV and patients.csv.gz."""
    suffix = path.suffix.lower()
    return path.with_suffix("").suffix.lower() if suffix == ".gz" else suffix


def stem_of(path: PurePath) -> str:
    """Return a file's name without the suffix of its format."""
    return path.with_suffix("").stem if path.suffix.lower() == ".gz" else path.stem


def content_of(path: Path) -> FileContent:
    """Return an ordinary file's content. Raises DataError if it is empty, too large or damaged."""
    num_bytes = path.stat().st_size
    if num_bytes == 0:
        raise DataError(f"Data file {path} is empty", remedy="Export the patients into it.")
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
            f"Data file {path} cannot be unpacked: {reason_of(problem)}", remedy="Export it again."
        ) from None
    if not found.num_bytes:
        raise DataError(f"Data file {path} is empty", remedy="Export the patients into it.")
    return found


def reason_of(problem: BaseException) -> str:
    """Return the first line of what a library says; of the system's errors it has no path."""
    lines = str(getattr(problem, "strerror", None) or problem).strip().splitlines()
    return lines[0][:200] if lines else "damaged"


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
                f"Data file {path} holds {len(members)} files ({names})",
                remedy="Pack one table alone, or unpack it and give the table.",
            )
        if members[0].flag_bits & 1:
            raise DataError(
                f"Data file {path} is encrypted", remedy="Unpack it, and give the table."
            )
        with archive.open(members[0]) as file:
            return FileContent(path, suffix_of(PurePath(members[0].filename)), _read(path, file))


def _read(path: Path, file: gzip.GzipFile | IO[bytes]) -> bytes:
    """Read all of it, up to the limit: a small file can unpack to any size."""
    found = bytearray()
    while chunk := file.read(CHUNK):
        found += chunk
        _check_size(path, len(found))
    return bytes(found)


def _check_size(path: Path, num_bytes: int) -> None:
    if num_bytes > MAX_FILE_BYTES:
        raise DataError(
            f"Data file {path} has {num_bytes / 2**30:.1f} GiB, more than the"
            f" {MAX_FILE_BYTES // 2**30} GiB that are read",
            remedy="Export only the study's columns.",
        )


def encoding_of(content: FileContent, given: str | None) -> tuple[str, list[str]]:
    """Return the encoding as Python calls it; where none is given, with a note if not UTF-8."""
    if given is not None:
        return declared_encoding(content, given), []
    with content.open() as file:
        begin = file.read(4)
    if begin in (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE):  # the first begins as UTF-16's
        return declared_encoding(content, "utf-32"), [_said("UTF-32")]
    if begin.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return declared_encoding(content, "utf-16"), [_said("UTF-16")]
    if _decodes(content, "utf-8"):
        return "utf-8-sig", []
    if each := ", ".join(f'"{name}" ({word})' for name, word in _readings(content)):
        raise DataError(
            f"Data file {content} is not in UTF-8, and may be in any of {each}",
            remedy=f"Look which one reads right, and {ASK}; or save it as UTF-8.",
        )
    raise DataError(
        f"Data file {content} is not text in an encoding that is known here",
        remedy=f"Save it as UTF-8, or {ASK}.",
    )


def _said(encoding: str) -> str:
    return f"the text is in {encoding} (detected; encoding sets it)"


def declared_encoding(content: FileContent, encoding: str) -> str:
    """Return the site file's encoding, as Python calls it."""
    if not _decodes(content, encoding):
        raise DataError(
            f"Data file {content} is not text in {encoding}",
            remedy='Correct encoding under [data], such as "utf-8", "utf-16" or "cp1252"'
            " (Windows in western Europe), or leave it out.",
        )
    name = codecs.lookup(encoding).name
    return "utf-8-sig" if name == "utf-8" else name


def _decodes(content: FileContent, encoding: str) -> bool:
    """Return whether all of it decodes. Raises DataError if only its last character is cut off."""
    decoder = codecs.getincrementaldecoder(encoding)()
    with content.open() as file:
        try:
            while chunk := file.read(CHUNK):
                if encoding == "utf-8" and b"\0" in chunk:
                    raise DataError(
                        f"Data file {content} holds NUL characters, as text in UTF-16 without its"
                        ' mark does ("utf-16-le" or "utf-16-be")',
                        remedy=f"If it is such, {ASK}; else export it as CSV in UTF-8.",
                    )
                if encoding == "utf-8" and b"\x1b$" in chunk:  # ASCII all through
                    raise DataError(
                        f'Data file {content} seems to be Japanese text in JIS ("iso2022_jp")',
                        remedy=f"If so, {ASK}; or save it as UTF-8.",
                    )
                if not chunk.isascii() or decoder.getstate()[0]:
                    decoder.decode(chunk)
        except UnicodeError:
            return False
    try:
        decoder.decode(b"", final=True)
    except UnicodeError:
        raise DataError(
            f"Data file {content} ends in the middle of a character, so it {CUT_OFF}"
        ) from None
    return True


def _readings(content: FileContent) -> Iterator[tuple[str, str]]:
    """Yield the encodings in which the first word that is not in ASCII is a word, with that."""
    # Separators of words and values are never a part of a character in these encodings.
    apart = re.compile(rb"[\s,;\t\"'()/:=+&!?.*#<>%-]+")
    with content.open() as file:
        words = (word for line in file for word in apart.split(line) if not word.isascii())
        word = next(words, b"")
    for encoding in ENCODINGS:
        try:
            text = word.decode(encoding)
        except UnicodeError:
            continue
        if all(c.isalpha() for c in text if not c.isascii()):
            yield encoding, text[:LONGEST_WORD]
