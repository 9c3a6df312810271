"""`rounds.jsonl`: one line for every round, written before the round counts as finished."""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from common.rounds import RoundRecord


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


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a journal as plain values; a last line that was cut off is left out."""
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            yield json.loads(line)
