"""What a person sees of a running study: live lines on a terminal, plain lines elsewhere."""

import os
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self, TextIO

from rich.console import Console

from common.logs import LogFormat
from common.rounds import RoundRecord
from common.study import Study
from server.observer import Observer
from server.result import Result
from server.terminal.json_lines import JsonProgress
from server.terminal.live import LiveProgress
from server.terminal.plain import PlainProgress


class Watcher(Observer, Protocol):
    """An observer that puts the terminal back in order, also after an error or Ctrl-C."""

    def __enter__(self) -> Self:
        """Ready to observe."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give the terminal back."""


def progress(stream: TextIO | None = None, log_format: LogFormat = "text") -> Watcher:
    """The observer that suits `stream` (standard output): live on a terminal, else plain."""
    stream = sys.stdout if stream is None else stream
    if log_format == "json":
        return JsonProgress(stream)
    # Asked of the stream and not of rich, which FORCE_COLOR makes take a log file for a terminal.
    if stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown"):
        return LiveProgress(Console(file=stream, highlight=False))
    return PlainProgress(stream)


class Quiet:
    """An observer that shows nothing."""

    def __enter__(self) -> Self:
        """Nothing to prepare."""
        return self

    def __exit__(self, *_problem: object) -> None:
        """Nothing to put back."""

    def listening(self, study: Study, address: str, run_folder: str) -> None:
        """Nothing is shown."""

    def joined(self, hospital: str, num_samples: int, missing: Sequence[str]) -> None:
        """Nothing is shown."""

    def declined(self, hospital: str, reason: str) -> None:
        """Nothing is shown."""

    def left(self, hospital: str) -> None:
        """Nothing is shown."""

    def arm_started(self, arm: str, rounds: int) -> None:
        """Nothing is shown."""

    def round_finished(self, record: RoundRecord) -> None:
        """Nothing is shown."""

    def arm_finished(self, arm: str) -> None:
        """Nothing is shown."""

    def finished(self, result: Result, run_folder: str) -> None:
        """Nothing is shown."""
