"""The journal of rounds: one line for every round, written before the round counts as finished."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from erosion_common.errors import CheckpointError
from erosion_common.formats.json_file import with_checksum, without_checksum
from erosion_common.rounds.records import RoundRecord
from erosion_common.support import files

FORMAT: Final = 1  # raised when a key changes its meaning
_PLAIN = TypeAdapter(RoundRecord)


class Journal:
    """Appends round records."""

    def __init__(self, path: Path) -> None:
        """Open `path`, making it if need be; a last line that was cut off is removed."""
        files.cut_to_whole_lines(path)
        self._path, self._file = path, path.open("a", encoding="utf-8")
        files.sync_folder(path.parent)

    def write(self, record: RoundRecord) -> None:
        """Write one line: it outlives this program at once, and the machine after `sync`.

        Raises CheckpointError where nobody would find it.
        """
        if not files.is_in_place(self._path, self._file):
            raise CheckpointError(
                f"{self._path} was moved, removed or replaced while the run went on",
                remedy="Put it back, and resume the run.",
            )
        with files.naming(self._path):
            self._file.write(_line({"format": FORMAT, **_PLAIN.dump_python(record, mode="json")}))
            self._file.flush()

    def sync(self) -> None:
        """Wait until the disk has every line."""
        os.fdatasync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def finished_rounds(path: Path, last_round: Mapping[str, int]) -> list[RoundRecord]:
    """Return every arm's rounds up to its last finished one, which has a checkpoint, in order.

    A round is written here before its checkpoint: the one after the last may never have been
    finished. Raises CheckpointError where a finished one is not here, and where more are here than
    that one: their checkpoints were lost.
    """
    every = read_records(path) if path.exists() else []
    records = [record for record in every if record.round <= last_round.get(record.arm, 0)]
    for arm, last in last_round.items():
        if not has_rounds(records, arm, last):
            raise CheckpointError(
                f"{path} lacks rounds of {arm}, of which {last} are finished: its checkpoint is"
                " there",
                remedy="Bring the journal back from a backup, or start the study again.",
            )
        written = max((record.round for record in every if record.arm == arm), default=0)
        if written > last + 1:
            have = f"is that of round {last}" if last else "is missing"
            raise CheckpointError(
                f"{path} has {written} rounds of {arm}, and its checkpoint {have}",
                remedy="Bring the folder checkpoints back from the backup that the journal is"
                f" from; or take {arm}'s lines after round {last} off the journal, and"
                " these rounds are done again.",
            )
    return records


def cut_back(path: Path, last_round: Mapping[str, int]) -> None:
    """Take off what is done again: every arm's rounds after its last finished one."""
    if path.exists():
        lines = (x for x in read_journal(path) if x["round"] <= last_round.get(x["arm"], 0))
        files.write_atomically(path, "".join(map(_line, lines)))


def has_rounds(records: Sequence[RoundRecord], arm: str, last: int) -> bool:
    """Return whether the arm's are those from 1 to `last`, each once and in order."""
    numbers = [record.round for record in records if record.arm == arm]
    return len(numbers) == last and numbers == [*range(1, last + 1)]


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid")

    record: RoundRecord


def read_records(path: Path) -> list[RoundRecord]:
    """Return every line as a record. Raises CheckpointError, FileNotFoundError."""
    records = []
    for number, line in enumerate(read_journal(path), start=1):
        del line["format"]
        try:
            records.append(_Line.model_validate({"record": line}).record)
        except ValidationError as problem:
            raise _unreadable(path, number, str(problem)) from None
    return records


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """Yield whole lines as plain values. Raises CheckpointError for others', FileNotFoundError."""
    number = 0
    try:
        for line in files.lines_of(path):
            number += 1
            if not line.endswith(b"\n"):
                continue
            values = json.loads(line.decode())
            if not isinstance(values, dict):
                raise ValueError("it is not a JSON object")
            found = values.get("format")
            if found != FORMAT or isinstance(found, bool):
                raise ValueError(f"its format is {found!r:.40}")
            yield without_checksum(values)
    except FileNotFoundError:
        raise
    except OSError as problem:
        raise CheckpointError(
            f"{path} cannot be read ({problem})",
            remedy="Put that right, or bring it back from a backup.",
        ) from None
    except (ValueError, RecursionError) as problem:
        raise _unreadable(path, number, str(problem)) from None


def _line(values: Mapping[str, Any]) -> str:
    return json.dumps(with_checksum(values), allow_nan=False) + "\n"


def _unreadable(path: Path, number: int, reason: str) -> CheckpointError:
    return CheckpointError(
        f"Line {number} cannot be read: {reason}",
        where=str(path),
        remedy="Bring the run's folder back from a backup, or run the study again. This program"
        f" reads format {FORMAT}.",
    )
