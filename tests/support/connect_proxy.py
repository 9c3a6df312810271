"""An HTTP proxy that does CONNECT and nothing else."""

import socket
import threading
from contextlib import suppress
from typing import Self


class ConnectProxy:
    """Use as a context manager. It resolves every name to `target`, as no other machine could."""

    def __init__(self, target: str, *, refuses: str = "") -> None:
        """`target`: "host:port". `refuses`: the status with which it answers instead."""
        host, _, port = target.rpartition(":")
        self._target, self._refuses = (host, int(port)), refuses
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.asked: list[str] = []  # the heads of requests

    def __enter__(self) -> Self:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._tunnel, args=(client,), daemon=True).start()

    def _tunnel(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                if not (more := client.recv(1)):
                    return
                head += more
            self.asked.append(head.decode())
            if self._refuses:
                client.sendall(f"HTTP/1.1 {self._refuses}\r\n\r\n".encode())
                return
            with socket.create_connection(self._target) as server:
                client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                back = threading.Thread(target=_carry, args=(server, client), daemon=True)
                back.start()
                _carry(client, server)
                back.join(5)


def _carry(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(2**16):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
