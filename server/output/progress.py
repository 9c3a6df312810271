"""Progress of a running study: live lines on a terminal, plain lines elsewhere."""

import os
import sys
from typing import TextIO, cast

from rich.console import Console

from erosion.common.support.logs import LogFormat
from erosion.server.output.observer import Observer
from erosion.server.output.terminal.json_lines import JsonProgress
from erosion.server.output.terminal.live import LiveProgress
from erosion.server.output.terminal.plain import PlainProgress


class LabelledStream:
    """Writes whole lines, each with a label, so that studies can share a stream."""

    def __init__(self, stream: TextIO, label: str) -> None:
        self._stream, self._label, self._line = stream, label, ""

    def write(self, text: str) -> int:
        """Write what has become a whole line."""
        *lines, self._line = f"{self._line}{text}".split("\n")
        self._stream.write("".join(f"{self._label}{line}\n" for line in lines))
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        self._stream.flush()


def progress(
    stream: TextIO | None = None, log_format: LogFormat = "text", *, label: str = ""
) -> Observer:
    """The observer that suits `stream` (standard output): live on a terminal, else plain.

    `label`: of the study, where several share the stream.
    """
    stream = sys.stdout if stream is None else stream
    if log_format == "json":
        return JsonProgress(stream, label)
    if label:
        return PlainProgress(cast(TextIO, LabelledStream(stream, f"{label}: ")))
    # Asked of the stream and not of rich, which FORCE_COLOR makes take a log file for a terminal.
    if stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown"):
        return LiveProgress(Console(file=stream, highlight=False))
    return PlainProgress(stream)
