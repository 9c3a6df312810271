"""Logging to standard error, and standard streams that are there and take any character."""

import json
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, tzinfo
from types import MappingProxyType
from typing import IO, Any, Literal

from erosion_common.support.text import shown

# Read by Flower and gRPC when they are imported, so they are set here, which is imported first.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # it writes past every format that we have


LogFormat = Literal["text", "json"]
LOG_FORMATS: tuple[LogFormat, ...] = ("text", "json")
ROOT = "erosion."  # of our loggers' names; the rest is the component
_ABOUT: ContextVar[Mapping[str, str | int]] = ContextVar("about", default=MappingProxyType({}))
LONGEST_FIELD = 200  # characters


@contextmanager
def about(**fields: str | int | None) -> Iterator[None]:
    """Let what this thread logs in the block have fields, such as study, run, round, hospital.

    They may come from another side: they are shortened and escaped where they are written. None and
    "" leave a field as it was.
    """
    known = {name: value for name, value in fields.items() if value is not None and value != ""}
    token = _ABOUT.set({**_ABOUT.get(), **known})
    try:
        yield
    finally:
        _ABOUT.reset(token)


def json_line(level: str, component: str, **values: Any) -> str:
    """Return one line of a log: time in UTC, level, component, what it is about, and `values`."""
    head = {"time": stamp(time.time(), UTC), "level": level, "component": component}
    fields = {k: v if isinstance(v, int) else v[:LONGEST_FIELD] for k, v in _ABOUT.get().items()}
    return json.dumps({**head, **fields, **values})  # ASCII: safe on any stream


def stamp(seconds: float, zone: tzinfo | None = None) -> str:
    """Return a time since 1970 as ISO 8601 with its offset, by default in this machine's zone."""
    return (
        datetime.fromtimestamp(seconds, zone or UTC).astimezone(zone).isoformat("T", "milliseconds")
    )


class SafeText(logging.Formatter):
    """A record as lines that only show: what others sent cannot forge or hide one."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record: time with its offset, level, component, message."""
        head = f"{stamp(record.created)} {record.levelname} {record.name}: "
        lines = [head + short(record.getMessage()).replace("\n", "\\n")]
        if record.exc_info:
            trace = short(self.formatException(record.exc_info))
            lines += [f"    {line}" for line in trace.split("\n")]
        return shown("\n".join(lines).replace("\t", "    "))


def configure_logging(
    verbosity: int, log_format: LogFormat = "text", *, of_an_app: bool = False
) -> None:
    """0: warnings; 1: what happens; 2: Flower's own log too, which an app always has."""
    import flwr.app  # noqa: F401 - sets up its handlers, which are then quietened

    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbosity, 2)]
    logging.basicConfig(level=logging.WARNING, force=True)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(JsonLines() if log_format == "json" else SafeText())
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
    """One object a line: time, level, component, fields, message, and any traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        values = {"message": short(record.getMessage())}
        if record.exc_info:
            values["traceback"] = short(self.formatException(record.exc_info))
        component = record.name.removeprefix(ROOT)
        return json_line(record.levelname.lower(), component, **values)


def open_missing_streams() -> None:
    """Open what is missing of the standard streams, or the next file would get its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):  # numbers 0, 1 and 2
        if getattr(sys, name) is None:
            handle = os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
            setattr(sys, name, os.fdopen(handle, mode))


def never_fail_to_encode(stream: IO[str]) -> None:
    """Show "?" for what the stream's encoding lacks: an arrow must not end a command."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")
