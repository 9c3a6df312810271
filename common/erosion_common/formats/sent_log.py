"""The lines and files of the log of what was sent, and the check that nobody has altered them.

A full `sent.jsonl` becomes `sent-000000001.jsonl`, named for its first line; the hash chain goes on
in a new file. A full file is removed once the clock and the log say that it is too old.
"""

import errno
import hashlib
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pydantic import AwareDatetime, Field, JsonValue, ValidationError

from erosion_common.errors import CheckpointError, SiteError
from erosion_common.settings.base import Settings
from erosion_common.support import files
from erosion_common.support.files import cut_to_whole_lines, naming, open_named
from erosion_common.support.status import STATUS_NAME, read_status_file

FIRST = "0" * 64  # the first line's `previous`
MOST_VALUES = 16  # of an array that is logged in full


class AuditEntry(Settings):
    """One message handed to the network; its SHA-256 stands for arrays, which may be large."""

    number: int  # from 1
    time: str  # ISO 8601, UTC
    hospital: str = ""  # that sent it
    dataset: str = ""  # the account's name of the data that it answered from; "" for an app
    kind: str  # of the request that this answers: query.describe, train, evaluate, query.notice
    study: str | None  # the name of the approved study that the request is of
    digest: str | None = None  # SHA-256 of the study
    run: str | None
    arm: str | None
    round: int | None
    exchange: int | None = None  # the step's place in its round
    bytes: int  # of the header, then the arrays as little-endian numbers by name; for an
    # installed app, of its records' description, then its serialised arrays
    sha256: str  # of the same
    arrays: dict[str, tuple[int, ...]] = Field(default_factory=dict)  # name -> shape
    values: dict[str, tuple[float | None, ...]] = Field(default_factory=dict)  # of arrays of up to
    # 16 numbers, flat; None: not finite
    norm: float | None = None  # Euclidean, of the update; None where there is none or not finite
    figures: JsonValue = None  # the header: the sums, counts and metrics that were sent; of
    # an installed app, the description
    error: str | None = None  # an error that was sent in place of an answer
    previous: str  # SHA-256 of the line before

    @property
    def text(self) -> str:
        """The line without its newline; the next line's `previous` is its hash."""
        return self.model_dump_json()


def hash_of(text: str) -> str:
    """Return the SHA-256 of `text` in UTF-8, hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


FILE_NAME = "sent.jsonl"
LEAST_KEEP_DAYS = 30  # before a full file is removed, also where the site file says less
_FIRST_TAIL = 64 * 2**10  # bytes


def full_files(current: Path) -> list[Path]:
    """Return a log's full files, the oldest first."""
    pattern = re.compile(rf"{re.escape(current.stem)}-\d{{9,}}\.jsonl")
    found = current.parent.glob(f"{current.stem}-*.jsonl")
    return sorted(path for path in found if pattern.fullmatch(path.name))


def set_aside(current: Path, first_number: int) -> Path:
    """Rename the full file so that a new one can begin; return its path. Raises OSError."""
    full = current.with_name(f"{current.stem}-{first_number:09d}.jsonl")
    return current.replace(full)


def remove_old(current: Path, *, now: datetime, keep_days: int) -> list[Path]:
    """Remove full files with a last line older than that, except the newest; return them.

    They must also be older than the newest's first line by as much: a clock that is ahead for a
    while removes nothing. The newest stays, so that the chain visibly begins after a full file.
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
    """Return the last whole line without its end; empty where there is none. Raises OSError."""
    size = files.whole_bytes(path)  # text after the last newline was cut off
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
    """Yield every line without its end, and whether it has one. Raises OSError."""
    for line in files.lines_of(path):
        text = line.decode("utf-8", errors="replace")
        yield text.removesuffix("\n"), text.endswith("\n")


def entries_since(log: Path, number: int) -> Iterator[AuditEntry]:
    """Yield the log's lines after that number; all of them where another log was begun since."""
    try:
        if last_number(log) < number:
            number = 0
        files = [*full_files(log), log]
        firsts = [first_number(file) for file in files]
        for file, following in zip(files, [*firsts[1:], None], strict=True):
            if following is not None and following <= number + 1:
                continue  # all of it was read
            for text, whole in lines_of(file):
                with suppress(ValueError):  # `erosion log verify` reports it
                    entry = AuditEntry.model_validate_json(text)
                    if whole and entry.number > number:
                        yield entry
    except OSError as problem:
        remedy = "Check its folder."
        raise SiteError(f"{log} cannot be read: {problem.strerror}", remedy=remedy) from None


def last_number(log: Path) -> int:
    """Return the number of the log's last line; 0 where none can be read."""
    for file in reversed([*full_files(log), log]):
        with suppress(OSError, ValueError):
            return AuditEntry.model_validate_json(last_line(file)).number
    return 0


def head_in_status(log: Path) -> str | None:
    """Return the hash of the last line by the status file; None: it has none. Raises RunError."""
    seen = read_status_file(log.parent / STATUS_NAME)
    return str(seen.values.get("log_head") or "") or None if seen is not None else None


def has_head(log: Path, head: str) -> bool:
    """Return whether one of the log's lines has this hash. Raises OSError."""
    newest_first = reversed([*full_files(log), log])
    return head == FIRST or any(
        hash_of(text) == head for file in newest_first for text, _ in lines_of(file)
    )


def first_number(file: Path) -> int | None:
    """Return the number of a file's first line; None where it has none."""
    with suppress(ValueError, StopIteration):
        return AuditEntry.model_validate_json(next(lines_of(file))[0]).number
    return None


@dataclass(frozen=True, slots=True)
class Verified:
    """A log with lines that fit together."""

    num_lines: int
    head: str  # hash of the last line
    cut_off: bool  # whether half a line follows, left by a crash
    first: int = 1  # number of the first line; more where older files were removed
    num_witnessed: int = 0  # number of the coordinator's hashes that were found


def verify(
    path: Path,
    *,
    head: str | None = None,
    witnessed: Sequence[str] = (),
    young: Collection[str] = (),
) -> Verified:
    """Check the chain, full files next to `path` first. Raises SiteError where it does not fit.

    Lines removed at the end leave a chain that fits. They show only against a `head` noted earlier,
    or against the hashes that the coordinator keeps of every reply (`witnessed`, oldest first):
    each must be in the log. Where the log's oldest files were removed, hashes before the first one
    found may be missing, except those in `young`, from which no site has removed lines yet.
    """
    previous, number, first, cut_off = FIRST, 0, 1, False
    wanted, head_found = set(witnessed), head in (None, FIRST)
    for file in (*full_files(path), path):
        lines, cut_off = _whole_lines(file)
        for text in lines:
            line = _read(file, number + 1, text)
            if number == 0 and line.number > 1:
                if file == path:  # the newest full file is never removed
                    raise SiteError(
                        f"it begins with line {line.number}; the files {path.stem}-*{path.suffix}"
                        " with the lines before are not next to it",
                        remedy="Hand over the whole folder of records, with its files' names.",
                        where=path,
                    )
                previous, number, first = line.previous, line.number - 1, line.number
            _check(file, number + 1, line, previous)
            previous, number = hash_of(text), number + 1
            head_found = head_found or previous == head
            wanted.discard(previous)
    num_witnessed = len(set(witnessed) - wanted)
    if not head_found:
        raise SiteError(
            f"none of its {number - first + 1} lines has the hash {head}. Lines were removed"
            " at the end, or the log was written again.",
            where=path,
        )
    if first > 1:  # what files that are no longer kept said
        found_at = (place for place, noted in enumerate(witnessed) if noted not in wanted)
        wanted &= {*witnessed[next(found_at, len(witnessed)) :], *young}
    if wanted:
        raise SiteError(
            f"the coordinator keeps {len(wanted)} hashes of this log that none of its {number}"
            f" lines has, such as {min(wanted)}. Lines were removed, or the log was written"
            " again.",
            where=path,
        )
    return Verified(number - first + 1, previous, cut_off, first, num_witnessed)


def _whole_lines(path: Path) -> tuple[list[str], bool]:
    """Return complete lines, and whether half a line follows. Raises SiteError."""
    try:
        lines = list(lines_of(path))
    except OSError as problem:
        raise SiteError(
            f"{path} cannot be read: {problem.strerror}", remedy="Check the path."
        ) from None
    whole = [text for text, has_end in lines if has_end]
    return whole, len(whole) < len(lines)


def _read(path: Path, number: int, text: str) -> AuditEntry:
    try:
        return AuditEntry.model_validate_json(text)
    except ValueError:
        raise SiteError(f"line {number} is damaged; it cannot be read.", where=path) from None


def _check(path: Path, number: int, line: AuditEntry, previous: str) -> None:
    if line.previous != previous:
        before = "the beginning of the log" if number == 1 else f"line {number - 1}"
        raise SiteError(
            f"line {number} does not follow {before}. There a line was changed, removed, added"
            " or moved.",
            where=path,
        )
    if line.number != number:
        raise SiteError(f"line {number} says that it is line {line.number}.", where=path)


class Witnessed(Settings):
    """One line."""

    time: AwareDatetime
    hospital: str
    kind: str  # of the request that was answered
    head: str  # SHA-256 of the log's last line, hexadecimal


class Witness:
    """Appends to the file; it is made with the first line."""

    def __init__(self, path: Path) -> None:
        """Continue `path`; a last line that was cut off is removed. Raises OSError."""
        cut_to_whole_lines(path)
        self._path = path

    def __call__(self, hospital: str, kind: str, head: str) -> None:
        """Note one hash."""
        now = datetime.now(UTC).replace(microsecond=0)
        line = Witnessed(time=now, hospital=hospital, kind=kind, head=head)
        with naming(self._path), self._path.open("a", encoding="utf-8") as file:
            file.write(line.model_dump_json() + "\n")


def read_witness(path: Path, hospital: str) -> list[Witnessed]:
    """Return what is kept of one hospital's log, oldest first. Raises CheckpointError."""
    remedy = "Bring it back from a backup."
    try:
        lines = list(files.lines_of(path))
    except OSError as problem:
        raise CheckpointError(f"{path} cannot be read ({problem})", remedy=remedy) from None
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            noted = Witnessed.model_validate_json(line)
        except ValidationError:
            if number == len(lines) and not line.endswith(b"\n"):
                continue  # cut off by a crash
            what = f"Line {number} of {path} cannot be read"
            raise CheckpointError(what, remedy=remedy) from None
        if noted.hospital == hospital:
            found.append(noted)
    return found


def held_against(log: Path, witnessed: Sequence[Witnessed], head: str | None = None) -> Verified:
    """Verify a log against what a coordinator keeps of it; raises SiteError.

    Without a `head` it is compared with the one in the site's status file. Lines that are younger
    than any site may remove must all be there.
    """
    head = head_in_status(log) if head is None else head
    since = datetime.now(UTC) - timedelta(days=LEAST_KEEP_DAYS)
    heads = [noted.head for noted in witnessed]
    young = [noted.head for noted in witnessed if noted.time >= since]
    return verify(log, head=head, witnessed=heads, young=young)
