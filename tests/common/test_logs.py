"""Logs as JSON."""

import io
import json
import logging

from erosion_common.support.logs import JsonLines


def test_a_record_is_one_line_of_json_with_its_traceback() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    logger = logging.Logger("erosion.test")
    logger.addHandler(handler)
    logger.warning("%s was not let in:\nits key expired", "bob")
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logger.exception("failed")
    plain, failed = (json.loads(line) for line in stream.getvalue().splitlines())
    assert plain["message"] == "bob was not let in:\nits key expired"
    assert (plain["level"], plain["logger"]) == ("warning", "erosion.test")
    assert "traceback" not in plain
    assert "ValueError" in failed["traceback"]


def test_a_record_of_any_text_can_be_written_to_any_stream() -> None:
    record = logging.LogRecord("erosion", logging.INFO, "", 0, "\ud800 \u00e9\n", (), None)
    line = JsonLines().format(record)
    assert line.isascii()
    assert json.loads(line)["message"] == "\ud800 \u00e9\n"
