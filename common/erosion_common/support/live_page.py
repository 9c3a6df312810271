"""A read-only page on 127.0.0.1 that follows a program, for who has the key in its address."""

import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from importlib.resources import files
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from erosion_common.support.web_server import PlainAnswers, WebServer

LOOK_SECONDS = 1.0  # between two snapshots
BEAT_SECONDS = 10.0  # without news, to see whether the browser is still there
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
        self._server = WebServer("127.0.0.1", port, partial(_Handler, self))

    @property
    def url(self) -> str:
        """The address to open, with its key."""
        return f"http://127.0.0.1:{self._server.server_port}/?key={self._key}"

    def __enter__(self) -> Self:
        """Begin to answer."""
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Answer nobody any more."""
        self._ended.set()
        self._server.stop()

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


class _Handler(PlainAnswers):
    """Answers GET / and GET /events."""

    def __init__(self, page: LivePage, *arguments: Any) -> None:
        self._page = page
        super().__init__(*arguments)

    def do_GET(self) -> None:  # noqa: N802 - as http.server calls it
        """Send the page, or follow the program."""
        address = urlsplit(self.path)
        key = parse_qs(address.query).get("key", [""])[0]
        if not self._page.admits(key, self.headers.get("Host", "")):
            self.answer(403, "Open the address that the program printed, with its key.\n")
        elif address.path == "/":
            nonce = secrets.token_urlsafe(16)
            text = (files("erosion_common.support") / "live_page.html").read_text("utf-8")
            first = self._page.snapshot().decode().replace("<", "\\u003c")  # within a script
            page = text.replace("NONCE", nonce).replace("FIRST", first)
            allowed = f" script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}';"
            self.answer(200, page, "text/html", allowed)
        elif address.path == "/events":
            self.head(200, "text/event-stream")
            self.server.take_time(self.connection)
            with suppress(OSError):  # the browser went away
                self._page.follow(self._send)
        else:
            self.answer(404, "There is nothing here.\n")

    def _send(self, event: bytes) -> None:
        self.wfile.write(event)
        self.wfile.flush()
