"""An HTTP proxy that does CONNECT and nothing else, and one that opens TLS on the way."""

import socket
import ssl
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from erosion_server.enrolment.certificates import Identity


class Between(ABC):
    """Listens on a port of its own, before `target` ("host:port"); use it as a context manager."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        with suppress(OSError):  # once closed
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    @abstractmethod
    def _carry(self, client: socket.socket) -> None:
        """One connection, to its end."""


class ConnectProxy(Between):
    """It resolves every name to `target`, as no other machine could."""

    def __init__(self, target: str, *, refuses: str = "") -> None:
        """`refuses`: the status with which it answers instead."""
        super().__init__(target)
        self._refuses = refuses
        self.asked: list[str] = []  # the heads of requests

    def _carry(self, client: socket.socket) -> None:
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
                back = threading.Thread(target=pass_on, args=(server, client), daemon=True)
                back.start()
                pass_on(client, server)
                back.join(5)


class Inspector(Between):
    """Ends TLS with a certificate that it made itself, and opens TLS to `target` for the rest."""

    def __init__(self, shown: Identity, target: str, folder: Path, alpn: Sequence[str]) -> None:
        super().__init__(target)
        chain = folder / "inspector.pem"
        chain.write_bytes(shown.key + shown.certificate)
        self._here = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._here.load_cert_chain(chain)
        self._there = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._there.check_hostname, self._there.verify_mode = False, ssl.CERT_NONE
        if alpn:
            self._here.set_alpn_protocols(list(alpn))
            self._there.set_alpn_protocols(list(alpn))
        self.was_opened = False  # somebody said something inside

    def _carry(self, client: socket.socket) -> None:
        with (
            suppress(OSError),
            self._here.wrap_socket(client, server_side=True) as inside,
            socket.create_connection(self._target) as line,
            self._there.wrap_socket(line) as outside,
        ):
            while data := inside.recv(2**16):
                self.was_opened = True
                outside.sendall(data)


def pass_on(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(2**16):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
