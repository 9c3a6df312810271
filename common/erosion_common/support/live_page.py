"""A page on this machine that follows a program by what it writes: read-only, for one person.

It listens on 127.0.0.1 only, and answers nobody who lacks the key in its address. The browser gets
a snapshot whenever one has changed, as server-sent events; a page that is closed costs nothing.
"""

import errno
import json
import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from erosion_common.errors import LinkError

logger = logging.getLogger("erosion.page")

LOOK_SECONDS = 1.0  # between two snapshots
BEAT_SECONDS = 10.0  # without news, to see whether the browser is still there
REQUEST_SECONDS = 10.0  # for a request to arrive
MOST_BROWSERS = 16  # at a time
Snapshot = Callable[[], Mapping[str, Any]]  # fit for JSON; see live_page.html for what it may hold


class LivePage:
    """Serves the page from a thread; `with LivePage(...) as page: page.url`."""

    def __init__(self, snapshot: Snapshot, port: int = 0) -> None:
        """`port` 0 takes a free one. Raises LinkError where it is in use."""
        self._key = secrets.token_urlsafe(16)
        self._ended = threading.Event()
        self._places = threading.BoundedSemaphore(MOST_BROWSERS)
        self._snapshot, self._lock = snapshot, threading.Lock()
        try:
            self._server = _Server(("127.0.0.1", port), partial(_Handler, self))
        except (OSError, OverflowError) as problem:
            in_use = getattr(problem, "errno", None) == errno.EADDRINUSE
            why = "is in use" if in_use else f"cannot be used ({problem})"
            raise LinkError(
                f"Port {port} on 127.0.0.1 {why}. Give another one, or 0 for a free one."
            ) from None
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """The address to open, with its key."""
        return f"http://127.0.0.1:{self._server.server_port}/?key={self._key}"

    def __enter__(self) -> Self:
        """Begin to answer."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Answer nobody any more."""
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()

    def admits(self, key: str, host: str) -> bool:
        """Return whether a request has the key, and was not led here by another site's name."""
        name = host.rpartition(":")[0] or host
        is_ours = name in ("127.0.0.1", "localhost")
        return is_ours and secrets.compare_digest(key.encode(), self._key.encode())

    def snapshot(self) -> bytes:
        """Return what there is to show now, as JSON."""
        with self._lock:  # browsers share its state
            return json.dumps(self._snapshot()).encode()

    def follow(self, send: Callable[[bytes], None]) -> None:
        """Send a snapshot whenever it has changed, until the browser is gone or the page ends."""
        if not self._places.acquire(blocking=False):
            return
        try:
            sent, last = b"", time.monotonic()
            while not self._ended.is_set():
                found = self.snapshot()
                now = time.monotonic()
                if found != sent or now > last + BEAT_SECONDS:
                    send(b": here\n\n" if found == sent else b"data: " + found + b"\n\n")
                    sent, last = found, now
                self._ended.wait(LOOK_SECONDS)
        finally:
            self._places.release()


class _Server(ThreadingHTTPServer):
    """Its threads end with the program; a request that fails leaves no traceback."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Note what a browser that went away, or an address that is none, led to."""
        logger.debug("a request to the page failed", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    """Answers GET / and GET /events."""

    timeout = REQUEST_SECONDS

    def __init__(self, page: LivePage, *arguments: Any) -> None:
        self._page = page
        super().__init__(*arguments)

    def do_GET(self) -> None:
        """Send the page, or follow the program."""
        address = urlsplit(self.path)
        key = parse_qs(address.query).get("key", [""])[0]
        if not self._page.admits(key, self.headers.get("Host", "")):
            self._answer(403, b"Open the address that the program printed, with its key.\n")
        elif address.path == "/":
            nonce = secrets.token_urlsafe(16)
            text = (files("erosion_common.support") / "live_page.html").read_text("utf-8")
            first = self._page.snapshot().decode().replace("<", "\\u003c")  # within a script
            self._answer(200, text.replace("NONCE", nonce).replace("FIRST", first).encode(), nonce)
        elif address.path == "/events":
            self._head(200, "text/event-stream", "")
            with suppress(OSError):  # the browser went away
                self._page.follow(self._send)
        else:
            self._answer(404, b"There is nothing here.\n")

    def _answer(self, code: int, body: bytes, nonce: str = "") -> None:
        self._head(code, "text/html" if nonce else "text/plain", nonce, len(body))
        self.wfile.write(body)

    def _head(self, code: int, kind: str, nonce: str, length: int | None = None) -> None:
        self.send_response(code)
        allowed = f" script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}';" if nonce else ""
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header(
            "Content-Security-Policy",
            f"default-src 'none'; connect-src 'self'; frame-ancestors 'none';{allowed}",
        )
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Content-Type-Options", "nosniff")
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.end_headers()

    def _send(self, event: bytes) -> None:
        self.wfile.write(event)
        self.wfile.flush()

    def log_message(self, *_: Any) -> None:
        """Log nothing: the key is in the address."""
