"""A line between sites and coordinator that writes down every byte: for tests without TLS."""

import contextlib
import socket
import threading
from pathlib import Path
from typing import Self


class TappedLine:
    """Listens on a port of its own and passes everything on; use it as a context manager."""

    def __init__(self, onward: str, folder: Path) -> None:
        """`onward`: the coordinator's address; `folder`: a file for each direction of each call."""
        host, _, port = onward.rpartition(":")
        self._onward, self._folder = (host, int(port)), folder
        folder.mkdir()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for end in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        number = 0
        while True:
            try:
                site, _ = self._listener.accept()
            except OSError:  # closed
                return
            try:
                coordinator = socket.create_connection(self._onward)
            except OSError:  # it does not listen yet: the site tries again
                site.close()
                continue
            self._open += [site, coordinator]
            number += 1
            for way, (source, sink) in {
                "up": (site, coordinator),
                "down": (coordinator, site),
            }.items():
                path = self._folder / f"{number}-{way}"
                threading.Thread(target=_pass_on, args=(source, sink, path), daemon=True).start()


def _pass_on(source: socket.socket, sink: socket.socket, path: Path) -> None:
    with path.open("wb", buffering=0) as written, contextlib.suppress(OSError):
        while content := source.recv(1 << 16):
            written.write(content)
            sink.sendall(content)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
