"""Logging to standard error: this program's log, and Flower's only on request."""

import logging
import os
from typing import Literal

from erosion.common.support.log_lines import JsonLines, short

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
        """Further lines of a message are indented, so that none looks like a record of its own."""
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
    # gRPC tells with a traceback of every call whose other side has gone.
    logging.getLogger("grpc").setLevel(logging.DEBUG if verbosity >= 2 else logging.CRITICAL)
    silent = logging.INFO if of_an_app else logging.CRITICAL
    logging.getLogger("flwr").setLevel(logging.DEBUG if verbosity >= 2 else silent)
