"""`metrics.csv` in the run's folder: a line for every figure of every round, while it runs.

A metric's round is that after which the measured model is: 0 is the untrained one.
"""

import csv
from datetime import UTC, datetime
from typing import TextIO

from erosion_common.rounds.events import RoundFinished
from erosion_common.support.files import cut_to_whole_lines
from erosion_server.output.events import RunEvent, RunFinished, StudyStarted
from erosion_server.output.observers import Observer
from erosion_server.output.round_facts import figures_of, final_figures_of

NAME = "metrics.csv"
COLUMNS = ("time", "arm", "trial", "round", "outcome", "quantity", "hospital", "value")


def open_output(where: str) -> Observer:
    """Return the output. Raises ValueError for a place: the file is in the run's folder."""
    if where:
        raise ValueError("takes no value: the file is in the run's folder")
    return MetricsCsv()


class MetricsCsv:
    """Appends whole rounds; where every hospital is the user, each has its own file."""

    def __init__(self) -> None:
        """Nothing is opened before the run has a folder."""
        self._file: TextIO | None = None

    def notify(self, event: RunEvent) -> None:
        """Write a round's figures, and the final ones."""
        match event:
            case StudyStarted(_, _, run_folder):
                self.close()
                path = run_folder / NAME
                cut_to_whole_lines(path)
                self._file = path.open("a", encoding="utf-8", newline="")
                if self._file.tell() == 0:
                    self._write([COLUMNS])
            case RoundFinished(record, is_trial):
                now = datetime.now(UTC).isoformat(timespec="milliseconds")
                head = (now, record.arm, int(is_trial))
                self._write([(*head, *figure) for figure in figures_of(record)])
            case RunFinished(result):
                now = datetime.now(UTC).isoformat(timespec="milliseconds")
                self._write([(now, arm, 0, *figure) for arm, figure in final_figures_of(result)])

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, rows: list[tuple[object, ...]]) -> None:
        if self._file is not None:
            csv.writer(self._file, lineterminator="\n").writerows(rows)
            self._file.flush()
