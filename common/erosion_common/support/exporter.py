"""`--metrics`: the program's figures for Prometheus; a fault there never holds it up."""

import argparse
import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from erosion_common.errors import RunError

logger = logging.getLogger("erosion.metrics")

FILE_SECONDS = 5.0  # between two versions of a file
SUFFIX = ".prom"  # node_exporter's collector reads no other files
CONTENT_TYPE = "text/plain; version=0.0.4"


def add_metrics(parser: argparse.ArgumentParser) -> None:
    """Add `--metrics`."""
    parser.add_argument(
        "--metrics",
        type=_place,
        metavar="[HOST:]PORT|FILE.prom",
        action="append",
        default=[],
        help="serve figures for Prometheus at http://HOST:PORT/metrics (HOST 127.0.0.1 by default),"
        " or write them to a file for node_exporter's textfile collector; they have hospitals'"
        " names, and no figure of a patient",
    )


@contextmanager
def exporting(places: Sequence[tuple[str, int] | Path]) -> Iterator[None]:
    """Export this program's figures within the block. Raises LinkError, RunError at once."""
    with ExitStack() as stack:
        for place in places:
            if isinstance(place, Path):
                stack.enter_context(_file(place))
            else:
                stack.enter_context(_page(*place))
        yield


def _place(text: str) -> tuple[str, int] | Path:
    if text.endswith(SUFFIX):
        return Path(text)
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdecimal() and int(port) < 2**16):
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a port (9464, or HOST:PORT) nor a file that ends in {SUFFIX}"
        )
    return host.strip("[]") or "127.0.0.1", int(port)


def _text() -> str:
    from erosion_common.support.monitoring import exposition, figures_of_this_program

    return exposition(figures_of_this_program())


@contextmanager
def _page(host: str, port: int) -> Iterator[None]:
    from erosion_common.support.web_server import PlainAnswers, WebServer

    class Metrics(PlainAnswers):
        """Answers GET /metrics."""

        def do_GET(self) -> None:  # noqa: N802 - as http.server calls it
            """Send the figures."""
            if self.path.partition("?")[0] == "/metrics":
                self.answer(200, _text(), CONTENT_TYPE)
            else:
                self.answer(404, "The figures are at /metrics.\n")

    server = WebServer(host, port, Metrics)
    shown = f"[{host}]" if ":" in host else host
    logger.info("figures for Prometheus at http://%s:%d/metrics", shown, server.server_port)
    server.start()
    try:
        yield
    finally:
        server.stop()


@contextmanager
def _file(path: Path) -> Iterator[None]:
    from erosion_common.support.files import write_atomically

    def why_not_written() -> str:
        try:  # node_exporter has an account of its own
            write_atomically(path, _text(), mode=0o644)
        except OSError as problem:
            return str(problem.strerror)
        return ""

    def follow() -> None:
        known = ""
        while not ended.wait(FILE_SECONDS):
            if (found := why_not_written()) not in ("", known):
                logger.warning("%s cannot be written: %s; it is tried again", path, found)
            known = found

    if why := why_not_written():
        raise RunError(
            f"it cannot be written ({why})",
            where=f"--metrics {path}",
            remedy="Name a file in a folder that this account may write.",
        )
    ended, thread = threading.Event(), threading.Thread(target=follow, name="metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(FILE_SECONDS)
        if why := why_not_written():  # the last words: whether it ended well
            logger.warning("%s cannot be written: %s", path, why)
