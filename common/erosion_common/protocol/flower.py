"""Flower's messages and arrays with what its own leave out.

Flower sets a message's id and sender inside its SuperLink. There is none here, so these messages
bring their own metadata through the public property; arrays share memory instead of copying it.
"""

import json
import math
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Error, Message, Metadata, RecordDict
from torch import Tensor

from erosion_common.protocol.frames import LARGEST_HEAD_BYTES, LONGEST_REASON, RunNews
from erosion_common.support.text import printable

RUN_ID, COORDINATOR_NODE_ID = 1, 1


def identify() -> None:
    """Make `flwr.app.Message(...)` usable in this process with any version of flwr."""
    try:
        identity = import_module("flwr.supercore.task_identity").TaskIdentity
    except ImportError:  # up to 1.37 a message asks for nothing
        return
    with suppress(RuntimeError):  # it is not set
        if identity.run_id != RUN_ID:  # Flower has set it: its own app imports this
            return
    identity.task_id, identity.run_id, identity.node_id = 1, RUN_ID, COORDINATOR_NODE_ID


RAW_FLOAT32 = "erosion.float32.le"  # a serialisation's name: little-endian values, no header
_KINDS: dict[
    str, tuple[str, np.dtype[Any]]
] = {  # what can travel: dtype -> the serialisation, and numpy's little-endian type
    "float32": (RAW_FLOAT32, np.dtype("<f4")),
    "uint8": ("erosion.uint8", np.dtype("u1")),
    "uint32": ("erosion.uint32.le", np.dtype("<u4")),
    "int64": ("erosion.int64.le", np.dtype("<i8")),
}


class BufferArray(Array):
    """An Array over memory that is there already; Flower's own holds a copy as `bytes`."""

    def __init__(self, dtype: str, shape: tuple[int, ...], stype: str, buffer: memoryview) -> None:
        """`buffer`: the serialised values, contiguous, as bytes."""
        self._buffer = buffer
        super().__init__(dtype, shape, stype, b"")

    @property
    def buffer(self) -> memoryview:
        """The serialised values, not copied."""
        return self._buffer

    @property
    def data(self) -> bytes:
        """The serialised values, copied now, for Flower's own interface."""
        return bytes(self._buffer)

    @data.setter
    def data(self, value: bytes) -> None:
        if value:  # Flower's constructor sets what it was given, which was nothing
            self._buffer = memoryview(value)

    def __deepcopy__(self, _memo: object) -> Array:
        return Array(self.dtype, self.shape, self.stype, self.data)


# By this name Flower's own programs read an array; to them there is no difference.
BufferArray.__qualname__ = Array.__qualname__


def buffer_of(array: Array) -> memoryview:
    """Return the serialised values of any Array, without a copy where that can be."""
    if isinstance(array, BufferArray):
        return array.buffer
    return memoryview(array.data)


def to_array(tensor: Tensor) -> Array:
    """Return an Array that shares the memory of `tensor` (any shape). Raises ValueError."""
    kind = str(tensor.dtype).removeprefix("torch.")
    if kind not in _KINDS:
        raise ValueError(f"{tensor.dtype} cannot be sent; it must be one of {', '.join(_KINDS)}")
    stype, little = _KINDS[kind]
    values = tensor.detach().cpu().contiguous().numpy().astype(little, copy=False)
    raw = values.reshape(-1).view(np.uint8)
    return BufferArray(kind, tuple(values.shape), stype, raw.data)


def to_record(arrays: Mapping[str, Array]) -> ArrayRecord:
    """Return the arrays themselves under their names; ArrayRecord's own constructor copies them."""
    record = ArrayRecord()
    for name, array in arrays.items():
        record[name] = array
    return record


def to_tensor(array: Array) -> Tensor:
    """Return an array's values in the memory that they came in. Raises ValueError."""
    stype, little = _KINDS.get(array.dtype, ("?", np.dtype("u1")))
    if array.stype != stype:
        raise ValueError(
            f"{array.dtype} in {array.stype}, expected float32 in {RAW_FLOAT32}, or uint8, uint32"
            " or int64 likewise"
        )
    buffer, size = buffer_of(array), little.itemsize
    if any(n < 0 for n in array.shape) or buffer.nbytes != size * math.prod(array.shape):
        raise ValueError(f"{buffer.nbytes} bytes for shape {array.shape}")
    values = np.frombuffer(buffer, dtype=little).astype(little.newbyteorder("="), copy=False)
    if not values.flags.writeable:  # of `bytes`, which torch must not write to
        values = values.copy()
    return torch.from_numpy(values.reshape(array.shape))


CLIENT_APP_RAISED_EXCEPTION = 2  # the site's program says why
MESSAGE_UNAVAILABLE = 3  # the message cannot be used
NODE_UNAVAILABLE = 5  # the site left or lost its connection


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """A site's problem, or the link's own words, which name no hospital."""

    code: str  # the class of the site's error; "" where none says it
    hospital: str  # as the site calls itself: not to be trusted; ""
    reason: str

    def encode(self) -> Error:
        """Return a Flower error, on one line of at most LONGEST_REASON characters."""
        most = LONGEST_REASON
        while True:
            said = {**asdict(self), "reason": printable(self.reason, at_most=most)}
            text = json.dumps(said, ensure_ascii=False)
            if len(text) <= LONGEST_REASON:
                return Error(CLIENT_APP_RAISED_EXCEPTION, text)
            most = most * 3 // 4  # quotes and backslashes are written with another one before them


def read_error(error: Error) -> NoAnswer:
    """Parse an error; a text of any other form is the reason."""
    text = error.reason or "no reason given"
    try:
        match json.loads(text):
            case {"code": str(code), "hospital": str(hospital), "reason": str(reason)}:
                return NoAnswer(code, hospital, reason)
    except (ValueError, RecursionError):
        pass
    return NoAnswer("", "", text)


identify()  # every program that makes or reads a request or a reply imports this module

_HASH_LENGTH, _HEXADECIMAL = 64, set("0123456789abcdef")  # of a SHA-256


def _metadata(
    own_id: str, src: int, dst: int, replies_to: str, group: str, ttl: float, kind: str
) -> Metadata:
    return Metadata(RUN_ID, own_id, src, dst, replies_to, group, time.time(), ttl, kind)


class RequestMessage(Message):
    """A request under way, with its id."""

    def __init__(
        self,
        content: RecordDict,
        request_id: str,
        dst_node_id: int,
        message_type: str,
        *,
        group_id: str,
        ttl: float,
        run: RunNews | None = None,
    ) -> None:
        """`ttl` in seconds, from now on by this machine's clock. `run`: of an app, if it is one."""
        super().__init__(content, dst_node_id, message_type)
        self.run = run
        self._own_metadata = _metadata(
            request_id, COORDINATOR_NODE_ID, dst_node_id, "", group_id, ttl, message_type
        )

    @property
    def metadata(self) -> Metadata:
        """The sender, the receiver and the type."""
        return self._own_metadata


class BoundedMessage(Message):
    """A request that says how large an honest reply to it can be."""

    def __init__(
        self,
        content: RecordDict,
        dst_node_id: int,
        message_type: str,
        *,
        most_reply_bytes: int | None,
        ttl: float,
        group_id: str = "",
        most_head_bytes: int = LARGEST_HEAD_BYTES,
    ) -> None:
        """`most_reply_bytes`: of its arrays; None: not known. `most_head_bytes`: of all else.

        `ttl` in seconds.
        """
        super().__init__(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)
        self.most_reply_bytes, self.most_head_bytes = most_reply_bytes, most_head_bytes


class ReplyMessage(Message):
    """The answer to a request, which says who the sender is: it was authenticated for that."""

    def __init__(
        self,
        content: RecordDict | Error,
        request: Message,
        *,
        received_bytes: int = 0,
        log_head: str = "",
    ) -> None:
        """`received_bytes`: that came over the network; 0 for an error that stands for a reply.

        `log_head`: what the sender says is the hash of its log with this reply.
        """
        super().__init__(content, reply_to=request)
        self.received_bytes, self.log_head = received_bytes, log_head
        asked = request.metadata
        self._own_metadata = _metadata(
            "",
            asked.dst_node_id,
            COORDINATOR_NODE_ID,
            asked.message_id,
            asked.group_id,
            asked.ttl,
            asked.message_type,
        )

    @property
    def metadata(self) -> Metadata:
        """The request that it answers, and its sender."""
        return self._own_metadata


def run_of(request: Message) -> RunNews | None:
    """Return which run of an app a request is of; None where it is of none."""
    return request.run if isinstance(request, RequestMessage) else None


def most_reply_bytes(request: Message) -> int | None:
    """Return the largest size of an honest reply's arrays; None if the request names none."""
    return request.most_reply_bytes if isinstance(request, BoundedMessage) else None


def most_head_bytes(request: Message) -> int:
    """Return how large the header of an honest reply can be."""
    return request.most_head_bytes if isinstance(request, BoundedMessage) else LARGEST_HEAD_BYTES


def received_bytes(reply: Message) -> int:
    """Return how large a reply came over the network; 0 for an error that stands for one."""
    return reply.received_bytes if isinstance(reply, ReplyMessage) else 0


def log_head(reply: Message) -> str | None:
    """Return the hash that a site reports of its log with this reply; None if it reports none."""
    said = reply.log_head if isinstance(reply, ReplyMessage) else ""
    return said if len(said) == _HASH_LENGTH and set(said) <= _HEXADECIMAL else None
