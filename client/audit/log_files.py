"""The files of one log: the one that is written to, and the full ones before it.

`sent.jsonl` is written to; when it is full it becomes `sent-000000001.jsonl`, named for its first
line, and the chain of hashes goes on in a new one. A full file is removed once its last line is
older than the site keeps its log, by the clock and by the log itself.
"""

import errno
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

from erosion.client.audit.audit_entry import AuditEntry
from erosion.common.support import files
from erosion.common.support.files import open_named

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
