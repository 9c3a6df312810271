"""A line between sites and coordinator that writes down every byte: for tests without TLS."""

import contextlib
import itertools
import socket
import threading
from pathlib import Path

from tests.support.connect_proxy import Between


class TappedLine(Between):
    """Passes everything on to the coordinator."""

    def __init__(self, onward: str, folder: Path) -> None:
        """`onward`: the coordinator's address; `folder`: a file for each direction of each call."""
        super().__init__(onward)
        self._folder, self._numbers = folder, itertools.count(1)
        folder.mkdir()
        self._open: list[socket.socket] = []

    def __exit__(self, *given: object) -> None:
        super().__exit__(*given)
        for end in self._open:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _carry(self, client: socket.socket) -> None:
        try:
            coordinator = socket.create_connection(self._target)
        except OSError:  # it does not listen yet: the site tries again
            client.close()
            return
        self._open += [client, coordinator]
        number = next(self._numbers)
        up = (client, coordinator, self._folder / f"{number}-up")
        threading.Thread(target=_pass_on, args=up, daemon=True).start()
        _pass_on(coordinator, client, self._folder / f"{number}-down")


def _pass_on(source: socket.socket, sink: socket.socket, path: Path) -> None:
    with path.open("wb", buffering=0) as written, contextlib.suppress(OSError):
        while content := source.recv(1 << 16):
            written.write(content)
            sink.sendall(content)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
