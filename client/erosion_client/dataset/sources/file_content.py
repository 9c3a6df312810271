"""The unpacked content of a data file, and its encoding: detected or asked for, never guessed."""

import codecs
import gzip
import re
import tomllib
import unicodedata
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import pairwise
from pathlib import Path, PurePath
from typing import IO, BinaryIO, NoReturn

from erosion_common.errors import DataError

MAX_FILE_BYTES = 4 * 2**30  # a file beyond this is a mistake, not a hospital
CHUNK = 1 << 20  # bytes
CUT_OFF = "was cut off. Export it again."
ASK = "set encoding under [data] (--encoding where a draft is made)"
MOST_WORDS = 100_000  # not in ASCII, for distinguishing encodings
SHOWN = 6  # encodings in a message

_TABLES = tomllib.loads(Path(__file__).with_name("encodings.toml").read_text(encoding="utf-8"))
LATIN = {encoding: _TABLES["letters"][letters] for encoding, letters in _TABLES["latin"].items()}
OTHER, EAST_ASIAN = _TABLES["other"], _TABLES["east_asian"]
BEFORE, AFTER, ALONE = (_TABLES["marks"][where] for where in ("before", "after", "alone"))


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
    words, before_last = _words(content)
    readings = _readings(words)
    if not readings and before_last and _readings(before_last):
        raise DataError(
            f"Data file {content} ends in the middle of a character, it seems, so it {CUT_OFF}"
        )
    if not readings:
        raise DataError(
            f"Data file {content} is not text in one encoding that is known here",
            remedy=f"Save it as UTF-8, or {ASK}.",
        )
    if len(set(readings.values())) > 1:
        shown = list(readings)[:SHOWN]
        differing = next(i for i, _ in enumerate(words) if len({readings[e][i] for e in shown}) > 1)
        each = ", ".join(f'"{name}" ({readings[name][differing][:20]})' for name in shown)
        raise DataError(
            f"Data file {content} is not in UTF-8, and may be in any of {each}",
            remedy=f"Look which one reads right, and {ASK}; or save it as UTF-8.",
        )
    encoding = declared_encoding(content, next(iter(readings)))
    called = "Windows-1252" if encoding == "cp1252" else encoding
    return encoding, [_said(f"{called}, not UTF-8")]


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
                    _refuse_nul(content, chunk)
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


def _refuse_nul(content: FileContent, begin: bytes) -> NoReturn:
    even, odd = begin[::2].count(0), begin[1::2].count(0)
    seems = "utf-16-be" if even > odd else "utf-16-le"
    if min(even, odd) * 10 <= max(even, odd) and "\n" in begin.decode(seems, errors="replace"):
        raise DataError(
            f'Data file {content} seems to be text in UTF-16 without its mark ("{seems}")',
            remedy=f"If so, {ASK}; or save it as UTF-8.",
        )
    raise DataError(
        f"Data file {content} is not text that can be read (it holds NUL characters)",
        remedy=f"Export it as CSV in UTF-8, or {ASK}.",
    )


def _words(content: FileContent) -> tuple[list[bytes], list[bytes]]:
    """Return the distinct non-ASCII words, in the file's order, and those before its last line."""
    words: dict[bytes, None] = {}
    before_last: list[bytes] = []
    with content.open() as file:
        for line in file:
            if not line.endswith(b"\n"):
                before_last = list(words)
            if not line.isascii() and len(words) < MOST_WORDS:
                words.update(dict.fromkeys(_split(line)))
    return list(words), before_last


def _split(line: bytes) -> list[bytes]:
    # Separators of words and values are never a part of a character in the encodings known here.
    return [word for word in re.split(rb"[\s,;\t\"'()/:=+&!?.*#<>%-]+", line) if not word.isascii()]


def _readings(words: Sequence[bytes]) -> dict[str, tuple[str, ...]]:
    """Return the words as read in every encoding in which they are words."""
    read: dict[str, tuple[str, ...]] = {}
    for encoding in (*LATIN, *OTHER, *EAST_ASIAN):
        try:
            read[encoding] = tuple(word.decode(encoding) for word in words)
        except UnicodeError:
            continue
    fitting, spelt = {}, {}
    for encoding, texts in read.items():
        script = OTHER.get(encoding, "LATIN")
        if encoding in EAST_ASIAN:
            are_words = _are_east_asian(EAST_ASIAN[encoding], texts)
        else:
            are_words = all(_is_word(text, script) for text in texts)
        if not are_words:
            continue
        fitting[encoding] = texts
        letters = {c for c in "".join(texts).lower() if c.isalpha() and not c.isascii()}
        languages = LATIN.get(encoding, "").split()
        if not languages or any(letters - set("µμªº") <= set(each) for each in languages):
            spelt[encoding] = texts
    return spelt or fitting


def _is_word(text: str, script: str) -> bool:
    """Return whether these are letters of one script and case, or apostrophes."""
    if text in ALONE:
        return True
    core = text.lstrip(BEFORE).rstrip(AFTER)
    letters = re.sub(r"[\d_·’]", "", core)
    if not letters:
        return True
    if re.search(r"\d[^\x00-\x7f]|[^\x00-\x7f]\d", core):
        return False
    if not all(c.isalpha() and unicodedata.name(c, "").startswith(script) for c in letters):
        return False
    if script == "LATIN" and len(letters) > 1 and re.search(r"[A-Za-z]", letters) is None:
        return False  # no word consists of accented letters alone
    return not any(
        a.islower() and b.isupper() and not (a + b).isascii() for a, b in pairwise(letters)
    )


def _are_east_asian(usual: str, texts: Sequence[str]) -> bool:
    """Return whether words are made of the narrow set's adjacent characters, mostly several."""
    several = 0
    for text in texts:
        wide = [c for c in text if not c.isascii()]
        if any(unicodedata.east_asian_width(c) not in "WFA" for c in wide):
            return False
        if re.search(r"[A-Za-z][^\x00-\x7f][A-Za-z]", text):
            return False
        try:
            "".join(wide).encode(usual)
        except UnicodeError:
            return False
        several += sum(unicodedata.east_asian_width(c) == "W" for c in wide) > 1
    return 2 * several >= len(texts)
