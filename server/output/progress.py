"""Progress of a running study: live lines on a terminal, plain lines elsewhere."""

import os
import sys
from typing import TextIO

from rich.console import Console

from erosion.common.support.logs import LogFormat
from erosion.server.output.observer import Observer
from erosion.server.output.terminal.json_lines import JsonProgress
from erosion.server.output.terminal.live import LiveProgress
from erosion.server.output.terminal.plain import PlainProgress


def progress(stream: TextIO | None = None, log_format: LogFormat = "text") -> Observer:
    """The observer that suits `stream` (standard output): live on a terminal, else plain."""
    stream = sys.stdout if stream is None else stream
    if log_format == "json":
        return JsonProgress(stream)
    # Asked of the stream and not of rich, which FORCE_COLOR makes take a log file for a terminal.
    if stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown"):
        return LiveProgress(Console(file=stream, highlight=False))
    return PlainProgress(stream)
