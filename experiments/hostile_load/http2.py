"""As much HTTP/2 as an attacker needs: frames put together by hand."""

import struct

from erosion_common.protocol.frames import PATH

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING = 0, 1, 3, 4, 6
_END_HEADERS, _ACK = 4, 1


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return struct.pack(">I", len(body))[1:] + struct.pack(">BBI", kind, flags, stream) + body


def _field(name: str, value: str) -> bytes:
    """HPACK: a literal that is not indexed."""
    parts = [bytes((len(text),)) + text.encode() for text in (name, value)]
    return b"\0" + b"".join(parts)


def opening(window: int = 65_535) -> bytes:
    """Return what a client says first. `window`: bytes that it takes in before it asks for more."""
    return PREFACE + settings(window)


def call(stream: int) -> bytes:
    """Return the headers of a call with a body to follow."""
    fields = (
        (":method", "POST"),
        (":scheme", "https"),
        (":path", PATH),
        (":authority", "erosion"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    )
    return _frame(_HEADERS, _END_HEADERS, stream, b"".join(_field(*f) for f in fields))


def data(stream: int, body: bytes) -> bytes:
    """Part of a call's body."""
    return _frame(_DATA, 0, stream, body)


def message_head(num_bytes: int) -> bytes:
    """Return how a gRPC message begins."""
    return struct.pack(">BI", 0, num_bytes)


def reset(stream: int) -> bytes:
    """The call is taken back."""
    return _frame(_RST_STREAM, 0, stream, struct.pack(">I", 8))


def ping() -> bytes:
    """Return a ping that wants an answer."""
    return _frame(_PING, 0, 0, bytes(8))


def settings(window: int = 65_535) -> bytes:
    """Settings that want an answer."""
    return _frame(_SETTINGS, 0, 0, struct.pack(">HI", 4, window))


def acknowledged() -> bytes:
    """That the other side's settings hold."""
    return _frame(_SETTINGS, _ACK, 0, b"")
