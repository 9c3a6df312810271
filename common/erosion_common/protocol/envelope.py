"""A Flower RecordDict as a message's header and its arrays' bytes, and back."""

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from erosion_common.protocol.flower import BufferArray, buffer_of
from erosion_common.protocol.frames import (
    FAST_BYTES,
    FAST_BYTES_PER_SECOND,
    LARGEST_DATA_BYTES,
    MODEST_DATA_BYTES,
    SMALLEST_DATA_BYTES,
    Kind,
    ProtocolFault,
)

ALIGNMENT = 8  # bytes
MOST_ARRAYS = 20_000  # of one message
MOST_RECORDS = 64  # of one message
MOST_VALUES = 20_000  # metrics and configs of one message, those in lists counted one by one
MOST_DIMENSIONS = 64
_ZEROS = memoryview(bytes(ALIGNMENT))


def padded(num_bytes: int) -> int:
    """Return the room that an array takes."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def describe(content: RecordDict) -> tuple[dict[str, Any], list[memoryview]]:
    """Return the description of `content` for a header, and its arrays' bytes, not copied."""
    records: dict[str, Any] = {}
    buffers: list[memoryview] = []
    for name, record in content.items():
        if isinstance(record, ArrayRecord):
            arrays = []
            for key, array in record.items():
                buffer = buffer_of(array)
                buffers.append(buffer)
                shape = list(array.shape)
                arrays.append([key, array.dtype, shape, array.stype, buffer.nbytes])
            records[name] = {"arrays": arrays}
        elif isinstance(record, MetricRecord):
            records[name] = {"metrics": dict(record)}
        elif isinstance(record, ConfigRecord):
            records[name] = {"config": {key: _encoded(value) for key, value in record.items()}}
    return records, buffers


def data_frames(buffers: Sequence[memoryview], size: "FrameSize") -> Iterator[bytes]:
    """Yield the arrays' bytes as frames, one at a time: each byte is copied once."""
    parts: list[bytes | memoryview] = [_DATA]
    size.begin()
    room = size.num_bytes
    for piece in _with_padding(buffers):
        at = 0
        while at < len(piece):
            part = piece[at : at + room]
            parts.append(part)
            at += len(part)
            room -= len(part)
            if not room:
                yield b"".join(parts)
                parts, room = [_DATA], size.num_bytes
    if len(parts) > 1:
        yield b"".join(parts)


_DATA = bytes((Kind.DATA,))


def _with_padding(buffers: Sequence[memoryview]) -> Iterator[memoryview]:
    for buffer in buffers:
        yield buffer
        if rest := padded(buffer.nbytes) - buffer.nbytes:
            yield _ZEROS[:rest]


@dataclass
class FrameSize:
    """The size of a frame: as large as the link takes within a moment.

    Large frames cost less; on a slow link small ones let a sign of life through in time. gRPC and
    the kernel buffer a few megabytes, so only a message of which the link has quickly taken more
    than that has frames that are larger than modest.
    """

    num_bytes: int = SMALLEST_DATA_BYTES
    most_bytes: int = LARGEST_DATA_BYTES
    _taken: int = 0  # of the message under way, in bytes
    _seconds: float = 0.0  # that this took

    @classmethod
    def asked(cls, most_bytes: object) -> Self:
        """Return the size that the other side asked for; implausible ones are ignored."""
        if type(most_bytes) is not int:
            return cls()
        return cls(most_bytes=min(max(most_bytes, MODEST_DATA_BYTES), LARGEST_DATA_BYTES))

    def begin(self) -> None:
        """With another message: what the last one left behind may be on its way still."""
        self._taken, self._seconds = 0, 0.0
        self.num_bytes = min(self.num_bytes, MODEST_DATA_BYTES)

    def took(self, seconds: float) -> None:
        """Handing over the last frame took so long."""
        self._taken += self.num_bytes
        self._seconds += seconds
        if seconds < 0.25:
            is_fast = self._taken >= max(FAST_BYTES, FAST_BYTES_PER_SECOND * self._seconds)
            most = self.most_bytes if is_fast else min(self.most_bytes, MODEST_DATA_BYTES)
            self.num_bytes = min(most, 2 * self.num_bytes)
        elif seconds > 1:
            self.num_bytes = max(SMALLEST_DATA_BYTES, self.num_bytes // 2)


@dataclass(frozen=True, slots=True)
class _Described:
    key: str
    dtype: str
    shape: tuple[int, ...]
    stype: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class ContentDescription:
    """A header's checked description of a message's content, which `content` makes."""

    records: dict[str, tuple[_Described, ...] | MetricRecord | ConfigRecord]

    @property
    def num_bytes(self) -> int:
        """Of all arrays, with the gaps between them."""
        lists = (each for each in self.records.values() if isinstance(each, tuple))
        return sum(padded(array.num_bytes) for arrays in lists for array in arrays)

    def content(self, memory: memoryview) -> RecordDict:
        """Return the content; its arrays are views of `memory`."""
        at = 0
        content = RecordDict()
        for name, described in self.records.items():
            if not isinstance(described, tuple):
                content[name] = described
                continue
            content[name] = record = ArrayRecord()
            for each in described:
                part = memory[at : at + each.num_bytes]
                record[each.key] = BufferArray(each.dtype, each.shape, each.stype, part)
                at += padded(each.num_bytes)
        return content


def read_description(records: object) -> ContentDescription:
    """Check a header's description of the content. Raises ProtocolFault."""
    if not isinstance(records, dict):
        raise ProtocolFault("a message without records")
    _check_size(records)
    found: dict[str, tuple[_Described, ...] | MetricRecord | ConfigRecord] = {}
    for name, described in records.items():
        match described:
            case {"arrays": list(listed)} if len(described) == 1:
                found[name] = arrays = tuple(_array(each) for each in listed)
                if len({each.key for each in arrays}) < len(listed):
                    raise ProtocolFault("two arrays of one name in a record")
            case {"metrics": dict(values)} if len(described) == 1:
                found[name] = _made(MetricRecord, values)
            case {"config": dict(values)} if len(described) == 1:
                decoded = {key: _decoded(value) for key, value in values.items()}
                found[name] = _made(ConfigRecord, decoded)
            case _:
                raise ProtocolFault("a record of no known kind")
    return ContentDescription(found)


def _check_size(records: dict[str, Any]) -> None:
    """Check first: one site's header must not keep the others waiting."""
    if len(records) > MOST_RECORDS:
        raise ProtocolFault(f"more than {MOST_RECORDS} records in one message")
    num_arrays = num_values = 0
    for described in records.values():
        match described:
            case {"arrays": list(listed)}:
                num_arrays += len(listed)
            case {"metrics": dict(values)} | {"config": dict(values)}:
                lists = (value for value in values.values() if isinstance(value, list))
                num_values += len(values) + sum(map(len, lists))
    if num_arrays > MOST_ARRAYS:
        raise ProtocolFault(f"more than {MOST_ARRAYS} arrays in one message")
    if num_values > MOST_VALUES:
        raise ProtocolFault(f"more than {MOST_VALUES} metrics and configs in one message")


def _array(described: object) -> _Described:
    match described:
        case [str(key), str(dtype), list(shape), str(stype), int(num_bytes)]:
            if len(shape) > MOST_DIMENSIONS or not all(_is_count(size) for size in shape):
                raise ProtocolFault("an array of an impossible shape")
            if not _is_count(num_bytes):
                raise ProtocolFault("an array of an impossible size")
            return _Described(key, dtype, tuple(shape), stype, num_bytes)
        case _:
            raise ProtocolFault("an array without its type, shape and size")


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**62


def _made(kind: type[Any], values: dict[str, Any]) -> Any:
    try:
        return kind(values)
    except (TypeError, ValueError, IndexError, KeyError):
        raise ProtocolFault(f"a {kind.__name__} that cannot be made") from None


def _encoded(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, list):
        return [_encoded(each) for each in value]
    return value


def _decoded(value: Any) -> Any:
    if isinstance(value, dict):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (KeyError, ValueError, TypeError):
            raise ProtocolFault("bytes that are not in base64") from None
    if isinstance(value, list):
        if any(isinstance(each, list) for each in value):  # Flower has none, at any depth
            raise ProtocolFault("a list of lists")
        return [_decoded(each) for each in value]
    return value


class Space(Protocol):
    """Where a message's arrays are put."""

    def write(self, data: memoryview) -> None:
        """Append. Raises OSError."""

    def memory(self) -> memoryview:
        """Return all that was written."""


class MemorySpace:
    """Memory of the announced size; the machine gives it only as it is written to."""

    def __init__(self, num_bytes: int) -> None:
        self._values = np.empty(num_bytes, dtype=np.uint8)
        self._at = 0

    def write(self, data: memoryview) -> None:
        """Append."""
        end = self._at + len(data)
        self._values[self._at : end] = np.frombuffer(data, dtype=np.uint8)
        self._at = end

    def memory(self) -> memoryview:
        """Return all of it."""
        return self._values.data


class Nowhere:
    """For a message that nobody waits for."""

    def write(self, data: memoryview) -> None:
        """Let it go."""

    def memory(self) -> memoryview:
        """Return no memory."""
        return memoryview(b"")


class Assembly:
    """One message under way: its header, and the part of its arrays that has arrived."""

    def __init__(self, head: dict[str, Any], description: ContentDescription, space: Space) -> None:
        self.head = head
        self.num_bytes = description.num_bytes
        self._description, self._space, self._come = description, space, 0

    @property
    def is_whole(self) -> bool:
        """Has everything come?"""
        return self._come == self.num_bytes

    def take(self, data: memoryview) -> None:
        """Take the next bytes. Raises ProtocolFault for more than was announced, and OSError."""
        if not len(data) or self._come + len(data) > self.num_bytes:
            raise ProtocolFault("more or less data than the message announced")
        self._space.write(data)
        self._come += len(data)

    def let_go(self) -> None:
        """Nobody waits for it any more: what has come is not kept, nor what is to come."""
        self._space = Nowhere()

    def content(self) -> RecordDict:
        """Return the content, once it is whole."""
        return self._description.content(self._space.memory())
