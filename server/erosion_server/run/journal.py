"""A run's files that are read again: the journal of rounds, finished folds, and the witness.

`rounds.jsonl`: one line for every round, written before the round counts as finished. `folds.json`:
the finished folds of a cross-fitted evaluation. `witness.jsonl`: the end of each hospital's own log
of what it sent, a chain of hashes, with every reply; `erosion log verify --run` compares them.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import TypeAdapter

from erosion_common.errors import CheckpointError
from erosion_common.formats.json_file import read_json, with_checksum, without_checksum, write_json
from erosion_common.protocol.messages import Metrics
from erosion_common.rounds.records import HospitalRecord, RoundRecord
from erosion_common.rounds.selection import Curves
from erosion_common.settings.base import Settings
from erosion_common.support.files import (
    cut_to_whole_lines,
    lines_of,
    sync_folder,
    write_atomically,
)

FORMAT: Final = 1  # raised when a key changes its meaning
REMEDY = "Use the version that wrote it, or run the study again."


class Journal:
    """Appends round records. A line is on the disk when `append` returns."""

    def __init__(self, path: Path) -> None:
        """Open `path`, making it if need be; a last line that was cut off is removed."""
        cut_to_whole_lines(path)
        self._file = path.open("a", encoding="utf-8")
        sync_folder(path.parent)

    def append(self, record: RoundRecord) -> None:
        """Write one line, and wait for the disk."""
        self.write(record)
        self.sync()

    def write(self, record: RoundRecord) -> None:
        """Write one line: it outlives this program at once, and the machine after `sync`."""
        text = json.dumps({"format": FORMAT, **_plain(record)}, allow_nan=False, default=_plain)
        self._file.write(_line(json.loads(text)))
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
                " there. Bring the journal back from a backup, or start the study again."
            )
        written = max((record.round for record in every if record.arm == arm), default=0)
        if written > last + 1:
            have = f"is that of round {last}" if last else "is missing"
            raise CheckpointError(
                f"{path} has {written} rounds of {arm}, and its checkpoint {have}. Bring the folder"
                f" checkpoints back from the backup that the journal is from; or take {arm}'s lines"
                f" after round {last} off the journal, and these rounds are done again."
            )
    return records


def cut_back(path: Path, last_round: Mapping[str, int]) -> None:
    """Take off what is done again: every arm's rounds after its last finished one."""
    if path.exists():
        lines = (x for x in read_journal(path) if x["round"] <= last_round.get(x["arm"], 0))
        write_atomically(path, "".join(map(_line, lines)))


def has_rounds(records: Sequence[RoundRecord], arm: str, last: int) -> bool:
    """Return whether the arm's are those from 1 to `last`, each once and in order."""
    numbers = [record.round for record in records if record.arm == arm]
    return len(numbers) == last and numbers == [*range(1, last + 1)]


def keep_first(path: Path, num_lines: int) -> None:
    """Take off all lines but the first ones; there may be no such file. Raises OSError."""
    lines = list(lines_of(path)) if path.exists() else []
    if len(lines) > num_lines:
        write_atomically(path, b"".join(lines[:num_lines]))


def read_records(path: Path) -> list[RoundRecord]:
    """Return every line as a record. Raises CheckpointError, FileNotFoundError."""
    adapter = TypeAdapter(RoundRecord)
    records = []
    for number, line in enumerate(read_journal(path), start=1):
        try:
            _refuse_unknown(line)
            records.append(adapter.validate_python(line))
        except ValueError as problem:  # pydantic's is one
            raise _unreadable(path, number, str(problem)) from None
    return records


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a journal as plain values; a last line that was cut off is left out.

    Raises CheckpointError for a file that cannot be read or a line that is no JSON object of this
    format, and FileNotFoundError.
    """
    for number, line in enumerate(_lines_of(path), start=1):
        if not line.endswith(b"\n"):
            continue
        try:
            values = json.loads(line.decode())
            if not isinstance(values, dict):
                raise ValueError("it is not a JSON object")
            found = values.get("format")
            if found != FORMAT or isinstance(found, bool):
                raise ValueError(f"its format is {found!r:.40}")
        except (ValueError, RecursionError) as problem:
            raise _unreadable(path, number, str(problem)) from None
        try:
            yield without_checksum(values)
        except ValueError as problem:
            raise CheckpointError(
                f"Line {number} of {path} cannot be used: {problem}. Bring the run's folder back"
                " from a backup, or run the study again."
            ) from None


def _line(values: Mapping[str, Any]) -> str:
    return json.dumps(with_checksum(values), allow_nan=False) + "\n"


def _lines_of(path: Path) -> Iterator[bytes]:
    try:
        yield from lines_of(path)
    except FileNotFoundError:
        raise
    except OSError as problem:
        raise CheckpointError(
            f"{path} cannot be read ({problem}). Put that right, or bring it back from a backup."
        ) from None


def _plain(value: Any) -> Any:
    """Return a record's values; those that are records themselves follow in their turn."""
    if isinstance(value, Metrics):
        return value.model_dump()
    if isinstance(value, Mapping):
        return dict(value)
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _refuse_unknown(line: Mapping[str, Any]) -> None:
    known = {"format", *(f.name for f in fields(RoundRecord))}
    of_hospital = {f.name for f in fields(HospitalRecord)}
    hospitals = line.get("hospitals")
    entries = hospitals.values() if isinstance(hospitals, dict) else ()
    unknown = line.keys() - known
    unknown |= {key for entry in entries if isinstance(entry, dict) for key in entry} - of_hospital
    if unknown:
        raise ValueError(f"it has {', '.join(sorted(unknown))}, which is not known")


def _unreadable(path: Path, number: int, reason: str) -> CheckpointError:
    return CheckpointError(
        f"Line {number} of {path} cannot be read: {reason}. This program reads format {FORMAT}; was"
        f" it written by another version, or edited? {REMEDY}"
    )


class FoldRecord(Settings):
    """The user's metrics in every finished fold, round by round, and nothing of a patient."""

    format: Literal[1] = FORMAT
    finished: tuple[dict[str, tuple[Metrics | None, ...]], ...] = ()  # by arm; from round 1


def read_folds(path: Path) -> list[Curves]:
    """Return those that are finished; none where there is no file. Raises CheckpointError."""
    try:
        found = read_json(path, FoldRecord, version=FORMAT, error=CheckpointError, remedy=REMEDY)
    except FileNotFoundError:
        return []
    return list(found.finished)


def write_folds(path: Path, finished: Sequence[Curves]) -> None:
    """Put all of them into the run folder."""
    kept = tuple({arm: tuple(curve) for arm, curve in curves.items()} for curves in finished)
    write_json(path, FoldRecord(finished=kept))
