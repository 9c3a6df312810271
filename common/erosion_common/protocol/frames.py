"""The frames of `erosion.v1`, the one gRPC method by which a site and its coordinator talk.

A site opens one bidirectional stream and keeps it: `Connect(stream Frame) returns (stream Frame)`.
A frame is one gRPC message, a byte that says its kind and then its body (docs/link.md).
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import IntEnum, StrEnum
from typing import Any, Self, TypeGuard

from pydantic_core import from_json

from erosion_common.errors import ErosionError
from erosion_common.support.text import printable

WIRE = 1  # raised when a frame changes its meaning
SERVICE, METHOD = "erosion.v1.Line", "Connect"
PATH = f"/{SERVICE}/{METHOD}"

SMALLEST_DATA_BYTES = 2**15  # of a frame that does not end its message
# Of one frame, which is a sign of life once it is whole: on a link of unknown speed or to a
# coordinator of many sites, and on one that has taken FAST_BYTES of a message in time.
MODEST_DATA_BYTES, LARGEST_DATA_BYTES = 2**18, 2**21
FAST_BYTES, FAST_BYTES_PER_SECOND = 2**24, 2**22
ARRIVING_PATIENCE = 4  # times the otherwise tolerated silence, while a message is arriving
LARGEST_HEAD_BYTES = 4 * 2**20  # of a request's or a reply's JSON
LARGEST_GREETING_BYTES = 2**16  # of the JSON of one who was not asked anything yet
LARGEST_FRAME_BYTES = LARGEST_HEAD_BYTES + 64  # what gRPC takes in at a time
# gRPC ends a connection without an answer to HTTP/2 pings within 60 s: on a slow link the
# answer waits behind megabytes. The frames' signs of life take its place. Milliseconds; never.
PING_TIMEOUT = ("grpc.http2.ping_timeout_ms", 2**31 - 1)
LONGEST_TEXT = 1000  # characters of a version, a name
LONGEST_REASON = 4000  # characters of an error; a refusal may list reasons


class ProtocolFault(ErosionError):  # noqa: N818 - the other side's, not ours
    """The other side sent what the protocol does not have; the connection ends."""


class Kind(IntEnum):
    """What a frame is."""

    HELLO = 1
    MESSAGE = 2
    DATA = 3
    CUT = 4
    DROP = 5
    PING = 6
    PONG = 7
    AGAIN = 8


def frame(kind: Kind, body: bytes | memoryview = b"") -> bytes:
    """Return a frame, ready to be sent."""
    return b"".join((bytes((kind,)), body))


def json_frame(kind: Kind, values: dict[str, Any]) -> bytes:
    """Return a frame with a JSON body."""
    return frame(kind, json.dumps(values, separators=(",", ":")).encode())


def opened(received: bytes) -> tuple[Kind, memoryview]:
    """Return kind and body of a frame. Raises ProtocolFault."""
    try:
        return Kind(received[0]), memoryview(received)[1:]
    except (IndexError, ValueError):
        raise ProtocolFault("a frame of a kind that the protocol does not have") from None


def json_body(body: memoryview, *, most_bytes: int = LARGEST_HEAD_BYTES) -> dict[str, Any]:
    """Return the JSON of a frame. Raises ProtocolFault."""
    if len(body) > most_bytes:
        raise ProtocolFault(f"a head of {len(body)} bytes; at most {most_bytes} are accepted")
    try:
        values = from_json(bytes(body))  # unlike json, refuses lone surrogates
    except ValueError:
        raise ProtocolFault("a head that is not JSON") from None
    if not isinstance(values, dict):
        raise ProtocolFault("a head that is not a JSON object")
    return values


def text_in(values: dict[str, Any], key: str) -> str:
    """Return a header's text, "" where it is not there. Raises ProtocolFault."""
    value = values.get(key, "")
    if not isinstance(value, str) or len(value) > LONGEST_TEXT:
        raise ProtocolFault(
            f"a header in which {key!r} is not a text of at most {LONGEST_TEXT} characters"
        )
    return value


@dataclass(frozen=True, slots=True)
class Versions:
    """What one side runs."""

    wire: int  # of the frames
    protocol: int  # of the messages in them, the latest that it speaks
    software: str  # of the program
    oldest: int  # protocol that it still speaks

    @property
    def words(self) -> str:
        """For people."""
        software = printable(self.software, at_most=40)
        older = f"{self.oldest} to {self.wire}." if self.oldest < self.protocol else ""
        return f"erosion {software} (protocol {self.wire}.{older}{self.protocol})"

    def fit(self, other: "Versions") -> bool:
        """Return True if both sides speak one protocol."""
        speak_one = self.oldest <= other.protocol and other.oldest <= self.protocol
        return self.wire == other.wire and speak_one

    def as_json(self) -> dict[str, Any]:
        """Return the values for a HELLO."""
        return asdict(self)

    @classmethod
    def read(cls, values: dict[str, Any]) -> Self:
        """Read a HELLO, in which a later version may say more. Raises ProtocolFault."""
        wire, protocol = values.get("wire"), values.get("protocol")
        oldest = values.get("oldest", protocol)  # other programs may leave it out
        if not (_is_version(wire) and _is_version(protocol) and _is_version(oldest)):
            raise ProtocolFault("a greeting without its versions")
        return cls(wire, protocol, text_in(values, "software"), oldest)


def _is_version(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < 2**31


MOST_KEYS = 1000
Plain = str | int | float | bool


@dataclass(frozen=True, slots=True)
class RunNews:
    """What Flower's apps find in their context: a run's number and settings, and the node's id."""

    number: int
    config: Mapping[str, Plain] = field(default_factory=dict)
    node: int = 0  # of the site that is asked

    def as_json(self, node: int) -> dict[str, Any]:
        """Return the values for the header of a request to a node."""
        return {"number": self.number, "config": dict(self.config), "node": node}

    @classmethod
    def read(cls, said: object) -> "RunNews | None":
        """Read them from a header; None if it has none. Raises ProtocolFault."""
        match said:
            case None:
                return None
            case {"number": int(number), "config": dict(config), "node": int(node)} if (
                len(config) <= MOST_KEYS
            ):
                for key, value in config.items():
                    if not isinstance(value, Plain) or len(f"{key}{value}") > LONGEST_TEXT:
                        raise ProtocolFault(
                            f"a setting {key[:50]!r} of a run that is no plain value"
                        )
                return cls(number, config, node)
            case _:
                raise ProtocolFault("a run without its number, settings and node")


REASON = "erosion-reason"  # a Reason; the call's details say it in words
TIME = "erosion-time"  # goes with it: the coordinator's clock


class Reason(StrEnum):
    """Why a site is not let in, or its connection is ended."""

    NOT_ENROLLED = "not-enrolled"
    REVOKED = "revoked"
    EXPIRED = "expired"  # by the coordinator's clock, which may be wrong
    NAME = "name"  # the certificate is for another name than the key was enrolled for
    VERSION = "version"  # the two programs do not understand each other
    IN_USE = "in-use"  # another connection with the same key stands
    ABUSE = "abuse"  # it sent what no honest site sends
    SILENT = "silent"  # nothing was heard of it
    HANDSHAKE = "handshake"  # TLS was not agreed

    @property
    def is_final(self) -> bool:
        """Whether trying again is of no use before a person has acted."""
        return self in (Reason.NOT_ENROLLED, Reason.REVOKED, Reason.VERSION)
