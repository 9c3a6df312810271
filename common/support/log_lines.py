"""Log records as lines of JSON, for programs that collect logs."""

import json
import logging
from datetime import UTC, datetime

LONGEST_RECORD = 10_000  # characters, whoever sent what it quotes


def short(text: str) -> str:
    """The text without its middle where it is too long: a traceback says at its end what it is."""
    half = LONGEST_RECORD // 2
    return text if len(text) <= LONGEST_RECORD else f"{text[:half]} … {text[-half + 3 :]}"


class JsonLines(logging.Formatter):
    """One object a line: time, level, logger, message, and the traceback where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        when = datetime.fromtimestamp(record.created, UTC)
        values = {
            "time": when.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": short(record.getMessage()),
        }
        if record.exc_info:
            values["traceback"] = short(self.formatException(record.exc_info))
        return json.dumps(values)  # ASCII: safe on any stream, whatever others have sent
