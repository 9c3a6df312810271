"""`erosion log verify`: checks that nobody has altered a hospital's log of what it sent."""

from dataclasses import dataclass
from pathlib import Path

from erosion.client.audit.audit_entry import FIRST, AuditEntry, hash_of
from erosion.common.errors import SiteError


@dataclass(frozen=True, slots=True)
class Verified:
    """A log whose lines fit together."""

    num_lines: int
    head: str  # hash of the last line
    cut_off: bool  # whether half a line follows, which a crash leaves behind


def verify(path: Path, *, head: str | None = None) -> Verified:
    """Go through the whole chain; raises SiteError at the first line that does not fit.

    Lines that were removed at the end leave a chain that fits; they show only against a `head`
    that was noted earlier, which must then be one of the hashes.
    """
    try:
        content = path.read_text(encoding="utf-8", errors="replace")
    except OSError as problem:
        raise SiteError(f"{path} cannot be read: {problem.strerror}. Check the path.") from None
    lines = content.split("\n")
    cut_off = lines.pop() != ""
    previous, head_found = FIRST, head in (None, FIRST)
    for number, text in enumerate(lines, start=1):
        _check(path, number, text, previous)
        previous = hash_of(text)
        head_found = head_found or previous == head
    if not head_found:
        raise SiteError(
            f"{path}: none of its {len(lines)} lines has the hash {head}. Lines were removed at the"
            " end, or the log was written anew."
        )
    return Verified(len(lines), previous, cut_off)


def _check(path: Path, number: int, text: str, previous: str) -> None:
    try:
        line = AuditEntry.model_validate_json(text)
    except ValueError:
        raise SiteError(f"{path}: line {number} is damaged; it cannot be read.") from None
    if line.previous != previous:
        before = "the beginning of the log" if number == 1 else f"line {number - 1}"
        raise SiteError(
            f"{path}: line {number} does not follow {before}. There a line was changed, removed,"
            " added or moved."
        )
    if line.number != number:
        raise SiteError(f"{path}: line {number} says that it is line {line.number}.")
