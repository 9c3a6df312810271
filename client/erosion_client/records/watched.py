"""What `erosion watch SITE.toml` shows a site's own staff: its state, and what it sent."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from erosion_common.errors import ErosionError
from erosion_common.formats.sent_log import FILE_NAME, AuditEntry
from erosion_common.support.files import open_named
from erosion_common.support.status import find_status, health, lines_of_status
from erosion_common.support.text import printable

MOST_LINES = 40  # of the log
TAIL_BYTES = 2**18


def site_snapshot(site_file: Path) -> Mapping[str, Any]:
    """Return the page's snapshot."""
    try:
        path, seen = find_status(site_file)
        level, problems = health(path, seen)
    except (ErosionError, OSError) as problem:
        return {
            "parts": [{"title": str(site_file), "lines": [("status", printable(str(problem)))]}]
        }
    lines = [("attention", "; ".join(problems))] if problems else []
    part = {
        "title": f"Site {seen.values.get('site')}",
        "level": level.name,
        "lines": [*lines, *lines_of_status(seen.values)],
        "tables": [
            {
                "title": "What was asked and answered, the newest first",
                "head": ["number", "time", "asked", "study", "arm", "round", "bytes", "error"],
                "rows": [_row(entry) for entry in _last_entries(path.parent / FILE_NAME)],
            }
        ],
    }
    return {"parts": [part]}


def _last_entries(log: Path) -> list[AuditEntry]:
    """The log's last lines, the newest first; none where it cannot be read now."""
    found: list[AuditEntry] = []
    with suppress(OSError), open_named(log) as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - TAIL_BYTES))
        for line in file.read().splitlines()[-MOST_LINES:]:
            with suppress(ValidationError):  # the first may begin further up
                found.append(AuditEntry.model_validate_json(line))
    return found[::-1]


def _row(entry: AuditEntry) -> tuple[str, ...]:
    return (
        str(entry.number),
        entry.time,
        entry.kind,
        printable(entry.study or ""),
        printable(entry.arm or ""),
        "" if entry.round is None else str(entry.round),
        f"{entry.bytes:,}",
        printable(entry.error or ""),
    )
