"""A small HTTP server in a program that does something else: GET only, and bounded in all it does.

It answers MOST_REQUESTS at a time and closes further connections; a request that has not ended
after REQUEST_SECONDS, because it drips or nobody reads the answer, is cut off.
"""

import errno
import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

from erosion_common.errors import LinkError

logger = logging.getLogger("erosion.page")

MOST_REQUESTS = 32
REQUEST_SECONDS = 10.0


class WebServer(ThreadingHTTPServer):
    """`start` it, and `stop` it; its threads end with the program, and leave no traceback."""

    daemon_threads = True

    def __init__(self, host: str, port: int, handler: Callable[..., Any]) -> None:
        """Open the port; 0 takes a free one. Raises LinkError where that cannot be done."""
        self._begun: dict[socket.socket, float] = {}  # requests under way; inf: as long as it takes
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), handler)
        except (OSError, OverflowError, UnicodeError) as problem:
            in_use = getattr(problem, "errno", None) == errno.EADDRINUSE
            why = "is in use" if in_use else f"cannot be used ({problem})"
            raise LinkError(
                f"Port {port} on {host} {why}", remedy="Give another one, or 0 for a free one."
            ) from None

    def start(self) -> None:
        """Begin to answer."""
        threading.Thread(target=self.serve_forever, name="page", daemon=True).start()

    def stop(self) -> None:
        """Answer nobody any more."""
        self.shutdown()
        self.server_close()

    def take_time(self, request: socket.socket) -> None:
        """Let a request last."""
        self._begun[request] = float("inf")

    def server_bind(self) -> None:
        """Bind without looking this machine's name up: a DNS that is away would hold it up."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer it on a thread, if not too many are answered already."""
        if len(self._begun) >= MOST_REQUESTS:
            self.shutdown_request(request)
            return
        self._begun[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close the connection."""
        self._begun.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Cut off what takes too long; called at least twice a second."""
        overdue = time.monotonic() - REQUEST_SECONDS
        for request in [request for request, at in list(self._begun.items()) if at < overdue]:
            with suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Note what a browser that went away, or an address that is none, led to."""
        logger.debug("a request to the page failed", exc_info=True)


class PlainAnswers(BaseHTTPRequestHandler):
    """What handlers share; they have `do_GET`."""

    server: WebServer
    timeout = REQUEST_SECONDS

    def answer(self, code: int, text: str, kind: str = "text/plain", allowed: str = "") -> None:
        """Send a whole answer; `allowed`: more of the page's content security policy."""
        body = text.encode()
        self.head(code, kind, allowed, len(body))
        self.wfile.write(body)

    def head(self, code: int, kind: str, allowed: str = "", length: int | None = None) -> None:
        """Send the head of an answer."""
        self.send_response(code)
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

    def log_message(self, *_: Any) -> None:
        """Log nothing: the key is in the address."""
