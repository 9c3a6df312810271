"""What a site's log has that its records have not been held against yet."""

from collections.abc import Iterator
from pathlib import Path

from erosion.client.audit.audit_entry import AuditEntry
from erosion.client.audit.log_files import full_files, last_line, lines_of
from erosion.common.errors import SiteError


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
