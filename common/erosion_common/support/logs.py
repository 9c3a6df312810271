"""Logging to standard error, and standard streams that are there and take any character."""

import json
import logging
import os
import sys
from datetime import UTC, datetime
from typing import IO, Literal

# Read by Flower and gRPC when they are imported, so they are set here, which is imported first.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # it writes past every format that we have


LogFormat = Literal["text", "json"]
TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
LOG_FORMATS: tuple[LogFormat, ...] = ("text", "json")


class SafeText(logging.Formatter):
    """A record as text that a terminal only shows: what others sent cannot forge or hide a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record, further lines indented so that none looks like another record."""
        lines = short(super().format(record)).split("\n")
        return "\n    ".join(_shown(line) for line in lines)


def _shown(line: str) -> str:
    return "".join(c if c.isprintable() else "\ufffd" for c in line.replace("\t", "    "))


def configure_logging(
    verbosity: int, log_format: LogFormat = "text", *, of_an_app: bool = False
) -> None:
    """0: warnings; 1: what happens; 2: Flower's own log too, which an app always has."""
    import flwr.app  # noqa: F401 - sets up its handlers, which are then quietened

    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbosity, 2)]
    logging.basicConfig(level=logging.WARNING, force=True)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(JsonLines() if log_format == "json" else SafeText(TEXT))
    logging.getLogger("erosion").setLevel(level)
    # gRPC logs a traceback for every call after the other side has gone.
    logging.getLogger("grpc").setLevel(logging.DEBUG if verbosity >= 2 else logging.CRITICAL)
    silent = logging.INFO if of_an_app else logging.CRITICAL
    logging.getLogger("flwr").setLevel(logging.DEBUG if verbosity >= 2 else silent)


LONGEST_RECORD = 10_000  # characters


def short(text: str) -> str:
    """Return the text without its middle if it is too long: a traceback's end says most."""
    half = LONGEST_RECORD // 2
    return text if len(text) <= LONGEST_RECORD else f"{text[:half]} … {text[-half + 3 :]}"


class JsonLines(logging.Formatter):
    """One object a line: time, level, logger, message, and the traceback where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        when = datetime.fromtimestamp(record.created, UTC)
        values = {
            "time": when.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": short(record.getMessage()),
        }
        if record.exc_info:
            values["traceback"] = short(self.formatException(record.exc_info))
        return json.dumps(values)  # ASCII: safe on any stream


def open_missing_streams() -> None:
    """Where a program was started without a standard stream, it has nothing to read or say there.

    Otherwise the next file that it opens would get the stream's number, and a library's complaints.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):  # numbers 0, 1 and 2
        if getattr(sys, name) is None:
            handle = os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
            setattr(sys, name, os.fdopen(handle, mode))


def never_fail_to_encode(stream: IO[str]) -> None:
    """Show "?" for what the stream's encoding lacks: an arrow must not end a command."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")
