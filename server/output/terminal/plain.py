"""Progress as plain lines: for log files, pipes and CI."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Self, TextIO

from rich.console import Console

from erosion.common.rounds.one_round import RoundRecord
from erosion.common.study.study import Study
from erosion.server.output.plain_text import figure_text, printable
from erosion.server.output.terminal import words
from erosion.server.output.terminal.arm_progress import ArmProgress
from erosion.server.output.terminal.overview_table import print_overview
from erosion.server.output.terminal.streams import never_fail_to_encode
from erosion.server.output.terminal.summary import print_summary
from erosion.server.run.overview import Overview
from erosion.server.run.result import Result
from erosion.server.run.run_folder import RunFolder

LINES_PER_ARM = 10
SILENCE_SECONDS = 60.0  # slow rounds are told of at least this often
MOST_WEIGHTS = 8  # listed by name; more are summed up


class PlainProgress:
    """Writes whole lines without escape codes, each flushed at once."""

    def __init__(self, stream: TextIO) -> None:
        """Lines go to `stream`."""
        never_fail_to_encode(stream)
        self._stream = stream
        self._hospitals: tuple[str, ...] = ()
        self._user = ""
        self._arm = ArmProgress("", 0, ())
        self._silent_seconds = 0.0

    def __enter__(self) -> Self:
        """Nothing to prepare."""
        return self

    def __exit__(self, *_problem: object) -> None:
        """Nothing to put back."""

    def listening(self, study: Study, address: str, run_folder: str) -> None:
        """Say what is about to happen."""
        self._user = study.user
        self._hospitals = study.user_first
        for line in words.opening(study, address, run_folder):
            self._say(line)

    def joined(self, hospital: str, num_samples: int, missing: Sequence[str]) -> None:
        """Say who came, and who is waited for."""
        waiting = words.waiting(missing)
        self._say(words.joined(hospital, num_samples) + (f"; {waiting}" if waiting else ""))

    def declined(self, hospital: str, reason: str) -> None:
        """Say who will not take part."""
        self._say(words.declined(hospital, reason))

    def left(self, hospital: str) -> None:
        """Say who went."""
        self._say(words.left(hospital))

    def arm_started(self, arm: str, rounds: int) -> None:
        """Begin an arm."""
        self._arm = ArmProgress(arm, rounds, self._hospitals)
        self._silent_seconds = 0.0

    def round_finished(self, record: RoundRecord) -> None:
        """Say what is news, and now and then how far the arm is."""
        for event in self._arm.take(record):
            self._say(f"{self._arm.arm}, {words.news(event)}")
        self._silent_seconds += record.seconds
        if self._is_milestone(record.round) or self._silent_seconds >= SILENCE_SECONDS:
            self._silent_seconds = 0.0
            self._say(self._line())

    def arm_finished(self, arm: str) -> None:
        """Sum the arm up."""
        self._say(f"{arm} finished: {self._arm.closing}")
        if self._arm.trouble:
            self._say(f"{arm} had trouble: {self._arm.trouble}")

    def finished(self, result: Result, run_folder: str) -> None:
        """Print the table and the verdict."""
        print_summary(self._console(), result, RunFolder(Path(run_folder)).report)
        self._stream.flush()

    def user_failed(self, user: str, reason: str) -> None:
        """Say why a hospital gets no model."""
        self._say(words.user_failed(user, reason))

    def every_user_finished(self, overview: Overview, run_folder: str) -> None:
        """Print the hospitals side by side."""
        print_overview(self._console(), overview, RunFolder(Path(run_folder)).report)
        self._stream.flush()

    def _console(self) -> Console:
        return Console(
            file=self._stream,
            force_terminal=False,
            color_system=None,
            highlight=False,
            legacy_windows=False,
        )

    def _is_milestone(self, number: int) -> bool:
        rounds = max(1, self._arm.rounds)
        return number * LINES_PER_ARM // rounds > (number - 1) * LINES_PER_ARM // rounds

    def _line(self) -> str:
        arm = self._arm
        parts = [
            f"{arm.arm}: round {arm.round} of {arm.rounds}",
            arm.figures.replace("  ", ", "),
            arm.pace,
            weights_in_words({h: w for h, w in arm.weights.items() if h != self._user}),
        ]
        return "; ".join(part for part in parts if part)

    def _say(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


def weights_in_words(weights: Mapping[str, float | None]) -> str:
    """The peers' weights: each one where they are few, their range where they are many."""
    known = {name: weight for name, weight in weights.items() if weight is not None}
    if not known:
        return ""
    if len(known) <= MOST_WEIGHTS:
        return "weights " + ", ".join(f"{printable(n)} {w:.2f}" for n, w in known.items())
    values = list(known.values())
    eroded = f", {values.count(0.0)} of {len(values)} eroded" if 0.0 in values else ""
    return (
        f"weights {min(values):.2f} to {max(values):.2f},"
        f" median {figure_text(median(values), 2)}{eroded}"
    )
