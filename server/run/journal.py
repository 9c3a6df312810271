"""`rounds.jsonl`: one line for every round, written before the round counts as finished."""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from erosion.common.rounds.one_round import RoundRecord
from erosion.common.support.files import write_atomically


class Journal:
    """Appends round records. A line is on the disk when `append` returns."""

    def __init__(self, path: Path) -> None:
        """Open `path`, making it if need be."""
        self._file = path.open("a", encoding="utf-8")

    def append(self, record: RoundRecord) -> None:
        """Write one line."""
        values = asdict(record)
        values["user_metrics"] = record.user_metrics and record.user_metrics.model_dump()
        self._file.write(json.dumps(values, allow_nan=False) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def cut_back(path: Path, last_round: Mapping[str, int]) -> list[RoundRecord]:
    """Keep every arm's rounds up to its last finished one; what is kept, in order.

    A round is written here before its checkpoint: one that was never finished is done again.
    """
    if not path.exists():
        return []
    lines = [line for line in read_journal(path) if line["round"] <= last_round.get(line["arm"], 0)]
    text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
    write_atomically(path, text)
    return TypeAdapter(list[RoundRecord]).validate_python(lines)


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a journal as plain values; a last line that was cut off is left out."""
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            yield json.loads(line)
