"""`folds.json`: the finished folds of a cross-fitted evaluation, so that a resumed run goes on."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from erosion.common.errors import CheckpointError
from erosion.common.formats.json_file import read_json, write_json
from erosion.common.protocol.messages import Metrics
from erosion.common.rounds.selection import Curves
from erosion.common.settings.base import Settings

FORMAT: Final = 1  # raised when a key changes its meaning
REMEDY = "Start the study anew."


class FoldRecord(Settings):
    """The user's metrics in every finished fold, round by round, and nothing of a patient."""

    format: Literal[1] = FORMAT
    finished: tuple[dict[str, tuple[Metrics | None, ...]], ...] = ()  # by arm; from round 1


def read_folds(path: Path) -> list[Curves]:
    """Those that are finished; none where there is no file. Raises CheckpointError."""
    try:
        found = read_json(path, FoldRecord, version=FORMAT, error=CheckpointError, remedy=REMEDY)
    except FileNotFoundError:
        return []
    return list(found.finished)


def write_folds(path: Path, finished: Sequence[Curves]) -> None:
    """Put all of them into the run folder."""
    kept = tuple({arm: tuple(curve) for arm, curve in curves.items()} for curves in finished)
    write_json(path, FoldRecord(finished=kept))
