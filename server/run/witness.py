"""`witness.jsonl`: the hash of each hospital's own log that came with every reply.

A hospital's log of what it sent is a chain of hashes in its own hands. Here the coordinator keeps
what the end of that chain was each time, so that lines cannot be taken off it, or all of it written
anew, without `erosion log verify --run` showing it.
"""

from datetime import UTC, datetime
from pathlib import Path

from pydantic import AwareDatetime, ValidationError

from erosion.common.errors import CheckpointError
from erosion.common.settings.base import Settings
from erosion.common.support.files import cut_to_whole_lines, lines_of


class Witnessed(Settings):
    """One line."""

    time: AwareDatetime
    hospital: str
    kind: str  # of the request that was answered
    head: str  # SHA-256 of the log's last line, hexadecimal


class Witness:
    """Appends to the file; it is made with the first line."""

    def __init__(self, path: Path) -> None:
        """Go on with `path`; a last line that was cut off is removed. Raises OSError."""
        cut_to_whole_lines(path)
        self._path = path

    def __call__(self, hospital: str, kind: str, head: str) -> None:
        """Note one hash."""
        now = datetime.now(UTC).replace(microsecond=0)
        line = Witnessed(time=now, hospital=hospital, kind=kind, head=head)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line.model_dump_json() + "\n")


def read_witness(path: Path, hospital: str) -> list[Witnessed]:
    """What is kept of one hospital's log, oldest first. Raises CheckpointError."""
    try:
        lines = list(lines_of(path))
    except OSError as problem:
        raise CheckpointError(
            f"{path} cannot be read ({problem}). Give the folder of a run by this version or later."
        ) from None
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
