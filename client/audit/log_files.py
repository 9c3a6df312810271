"""The lines and files of one log: the file that is written to, and the full ones before it.

`sent.jsonl` is written to; when it is full it becomes `sent-000000001.jsonl`, named for its first
line, and the chain of hashes continues in a new one. A full file is removed once its last line is
older than the site keeps its log, by the clock and by the log itself.
"""

import errno
import hashlib
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

from pydantic import Field, JsonValue

from erosion.common.errors import SiteError
from erosion.common.settings.base import Settings
from erosion.common.support import files
from erosion.common.support.files import open_named

FIRST = "0" * 64  # the first line's `previous`
MOST_VALUES = 16  # of an array that is written down itself


class AuditEntry(Settings):
    """One message handed to the network; its SHA-256 stands for arrays, which may be large."""

    number: int  # from 1
    time: str  # ISO 8601, UTC
    hospital: str = ""  # that sent it
    dataset: str = ""  # what its account calls the data that it answered from; "" for an app
    kind: str  # of the request that this answers: query.describe, train, evaluate, query.notice
    study: str | None  # the name of the approved study that the request is of
    digest: str | None = None  # SHA-256 of the study
    run: str | None
    arm: str | None
    round: int | None
    exchange: int | None = None  # the step's place in its round; None in lines of earlier programs
    bytes: int  # of the header, then the arrays as little-endian numbers by name; of an app of the
    # site's own: of the description of its records, then the arrays as it serialised them
    sha256: str  # of the same
    arrays: dict[str, tuple[int, ...]] = Field(default_factory=dict)  # name -> shape
    values: dict[str, tuple[float | None, ...]] = Field(default_factory=dict)  # of arrays of up to
    # 16 numbers, flat; None: not finite. Lines of earlier programs have none
    norm: float | None = None  # Euclidean, of the update; None where there is none or not finite
    figures: JsonValue = None  # the header itself: the sums, counts and metrics that were sent; of
    # an app of the site's own, the description. Earlier programs left out those of more than 256 kB
    error: str | None = None  # the words that were sent in place of an answer
    previous: str  # SHA-256 of the line before

    @property
    def text(self) -> str:
        """The line without its newline: the next line's `previous` is its hash."""
        return self.model_dump_json()


def hash_of(text: str) -> str:
    """SHA-256 of `text` in UTF-8, hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


FILE_NAME = "sent.jsonl"
LEAST_KEEP_DAYS = 30  # of a full file, whatever the site file says
_FIRST_TAIL = 64 * 2**10  # bytes


def full_files(current: Path) -> list[Path]:
    """The full files of a log, the oldest first."""
    pattern = re.compile(rf"{re.escape(current.stem)}-\d{{9,}}\.jsonl")
    found = current.parent.glob(f"{current.stem}-*.jsonl")
    return sorted(path for path in found if pattern.fullmatch(path.name))


def set_aside(current: Path, first_number: int) -> Path:
    """Make room for a new file; returns where the full one is. Raises OSError."""
    full = current.with_name(f"{current.stem}-{first_number:09d}.jsonl")
    return current.replace(full)


def remove_old(current: Path, *, now: datetime, keep_days: int) -> list[Path]:
    """Remove full files whose last line is older than that, but the newest; returns them.

    They are older than the newest's first line by as much, too: a clock that is ahead for a while
    removes nothing. The newest stays: the chain is then seen to begin at a file that was full, not
    in the middle.
    """
    removed: list[Path] = []
    *older, newest = full_files(current) or [current]
    with suppress(OSError, ValueError, StopIteration):
        text, _ = next(lines_of(newest))
        since = min(now, _time_in(text)) - timedelta(days=keep_days)
        for path in older:
            with suppress(OSError, ValueError):
                if _time_in(last_line(path)) >= since:
                    break
                path.unlink()
                removed.append(path)
    return removed


def _time_in(line: str | bytes) -> datetime:
    return datetime.fromisoformat(AuditEntry.model_validate_json(line).time)


def last_line(path: Path) -> bytes:
    """The last whole line without its end; empty where there is none. Raises OSError."""
    size = files.whole_bytes(path)  # what stands after the last newline was cut off
    with open_named(path) as file:
        length = _FIRST_TAIL
        while True:
            file.seek(max(0, size - length))
            lines = file.read(min(length, size)).split(b"\n")
            if len(lines) > 2 or length >= size:  # the first may begin further up
                return lines[-2] if len(lines) > 1 else b""
            if length > files.MOST_LINE_BYTES:
                raise OSError(errno.EFBIG, "its last line has no likely length", str(path))
            length *= 4


def lines_of(path: Path) -> Iterator[tuple[str, bool]]:
    """Every line without its end, and whether it has one. Raises OSError."""
    for line in files.lines_of(path):
        text = line.decode("utf-8", errors="replace")
        yield text.removesuffix("\n"), text.endswith("\n")


def entries_since(log: Path, number: int) -> Iterator[AuditEntry]:
    """The lines of the log after that number; all of them where another log was begun since.

    Raises SiteError where it cannot be read.
    """
    try:
        yield from _entries_since(log, number)
    except OSError as problem:
        raise SiteError(f"{log} cannot be read: {problem.strerror}. Check its folder.") from None


def _entries_since(log: Path, number: int) -> Iterator[AuditEntry]:
    if (_last_number(log) or number) < number:
        number = 0
    files = [*full_files(log), log]
    firsts = [_first_number(file) for file in files]
    for file, following in zip(files, [*firsts[1:], None], strict=True):
        if following is not None and following <= number + 1:
            continue  # all of it was read
        for text, whole in lines_of(file):
            try:
                entry = AuditEntry.model_validate_json(text)
            except ValueError:
                continue  # `erosion log verify` reports it
            if whole and entry.number > number:
                yield entry


def _first_number(file: Path) -> int | None:
    for text, _ in lines_of(file):
        try:
            return AuditEntry.model_validate_json(text).number
        except ValueError:
            return None
    return None


def _last_number(log: Path) -> int | None:
    try:
        return AuditEntry.model_validate_json(last_line(log)).number
    except ValueError:
        return None
