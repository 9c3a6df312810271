"""`erosion log verify`: checks that nobody has altered a hospital's log of what it sent."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from erosion.client.audit.log_files import FIRST, AuditEntry, full_files, hash_of, lines_of
from erosion.common.errors import SiteError


@dataclass(frozen=True, slots=True)
class Verified:
    """A log whose lines fit together."""

    num_lines: int
    head: str  # hash of the last line
    cut_off: bool  # whether half a line follows, which a crash leaves behind
    first: int = 1  # number of the first line; more where older files were removed
    num_witnessed: int = 0  # of the hashes that the coordinator kept and that were found


def verify(
    path: Path,
    *,
    head: str | None = None,
    witnessed: Sequence[str] = (),
    young: Collection[str] = (),
) -> Verified:
    """Go through the whole chain, full files first; raises SiteError where a line does not fit.

    The full files are those beside `path`: without them a log that has gone on in another file is
    not held for one that was altered, and raises SiteError too.

    Lines that were removed at the end leave a chain that fits; they show only against a `head`
    that was noted earlier, or against the hashes that the coordinator keeps of every reply
    (`witnessed`, the oldest first): each must then be one of the log's. Where the log's oldest
    files were removed, those before the first that is found may be lacking, but for those in
    `young`, whose lines no site has removed yet.
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
                        f"{path}: it begins with line {line.number}; the files"
                        f" {path.stem}-*{path.suffix} with the lines before are not beside it. Hand"
                        " over the whole folder of records, with its files' names."
                    )
                previous, number, first = line.previous, line.number - 1, line.number
            _check(file, number + 1, line, previous)
            previous, number = hash_of(text), number + 1
            head_found = head_found or previous == head
            wanted.discard(previous)
    num_witnessed = len(set(witnessed) - wanted)
    if not head_found:
        raise SiteError(
            f"{path}: none of its {number - first + 1} lines has the hash {head}. Lines were"
            " removed at the end, or the log was written anew."
        )
    if first > 1:  # what was said in files that are no longer kept
        found_at = (place for place, noted in enumerate(witnessed) if noted not in wanted)
        wanted &= {*witnessed[next(found_at, len(witnessed)) :], *young}
    if wanted:
        raise SiteError(
            f"{path}: the coordinator keeps {len(wanted)} hashes of this log that none of its"
            f" {number} lines has, such as {min(wanted)}. Lines were removed, or the log was"
            " written anew."
        )
    return Verified(number - first + 1, previous, cut_off, first, num_witnessed)


def _whole_lines(path: Path) -> tuple[list[str], bool]:
    """Those that have an end, and whether half a line follows. Raises SiteError."""
    try:
        lines = list(lines_of(path))
    except OSError as problem:
        raise SiteError(f"{path} cannot be read: {problem.strerror}. Check the path.") from None
    whole = [text for text, has_end in lines if has_end]
    return whole, len(whole) < len(lines)


def _read(path: Path, number: int, text: str) -> AuditEntry:
    try:
        return AuditEntry.model_validate_json(text)
    except ValueError:
        raise SiteError(f"{path}: line {number} is damaged; it cannot be read.") from None


def _check(path: Path, number: int, line: AuditEntry, previous: str) -> None:
    if line.previous != previous:
        before = "the beginning of the log" if number == 1 else f"line {number - 1}"
        raise SiteError(
            f"{path}: line {number} does not follow {before}. There a line was changed, removed,"
            " added or moved."
        )
    if line.number != number:
        raise SiteError(f"{path}: line {number} says that it is line {line.number}.")
