"""What a coordinator keeps of the sites' logs: the hash of its end that came with each reply."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pydantic import AwareDatetime, ValidationError

from erosion_common.audit.log_files import LEAST_KEEP_DAYS, Verified, verify
from erosion_common.errors import CheckpointError
from erosion_common.settings.base import Settings
from erosion_common.support.files import cut_to_whole_lines, lines_of, naming
from erosion_common.support.status import STATUS_NAME, read_status_file

NAME = "witness.jsonl"  # in a run's folder


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
    try:
        lines = list(lines_of(path))
    except OSError as problem:
        raise CheckpointError(f"{path} cannot be read ({problem}).") from None
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            noted = Witnessed.model_validate_json(line)
        except ValidationError:
            if number == len(lines) and not line.endswith(b"\n"):
                continue  # cut off by a crash
            raise CheckpointError(f"Line {number} of {path} cannot be read.") from None
        if noted.hospital == hospital:
            found.append(noted)
    return found


def held_against(log: Path, witnessed: Sequence[Witnessed], head: str | None = None) -> Verified:
    """Verify a log against what a coordinator keeps of it; raises SiteError.

    Without a `head` it is compared with the one in the site's status file. Lines that are younger
    than any site may remove must all be there.
    """
    status = log.parent / STATUS_NAME
    if head is None and (seen := read_status_file(status)) is not None:
        head = str(seen.values.get("log_head") or "") or None
    since = datetime.now(UTC) - timedelta(days=LEAST_KEEP_DAYS)
    heads = [noted.head for noted in witnessed]
    young = [noted.head for noted in witnessed if noted.time >= since]
    return verify(log, head=head, witnessed=heads, young=young)
