"""Flower messages with what Flower's own leave out: a request's id, how large a reply is or can be.

Flower's constructor sets a message's id and its sender later, inside its SuperLink. There is none
here, so these messages bring their own metadata, through the public property.
"""

import time

from flwr.app import Error, Message, Metadata, RecordDict

from erosion.common.line.frames import LARGEST_HEAD_BYTES
from erosion.common.line.run_news import RunNews
from erosion.common.protocol.flower_identity import COORDINATOR_NODE_ID, RUN_ID, identify

identify()  # whoever makes or reads a request or a reply of the line imports this module

_HASH_LENGTH, _HEXADECIMAL = 64, set("0123456789abcdef")  # of a SHA-256


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
        self._own_metadata = Metadata(
            run_id=RUN_ID,
            message_id=request_id,
            src_node_id=COORDINATOR_NODE_ID,
            dst_node_id=dst_node_id,
            reply_to_message_id="",
            group_id=group_id,
            created_at=time.time(),
            ttl=ttl,
            message_type=message_type,
        )

    @property
    def metadata(self) -> Metadata:
        """Who asks whom for what."""
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
    """The answer to a request, whatever its sender claims.

    The sender was authenticated for this request, so the request says who it is.
    """

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
        self._own_metadata = Metadata(
            run_id=RUN_ID,
            message_id="",
            src_node_id=asked.dst_node_id,
            dst_node_id=COORDINATOR_NODE_ID,
            reply_to_message_id=asked.message_id,
            group_id=asked.group_id,
            created_at=time.time(),
            ttl=asked.ttl,
            message_type=asked.message_type,
        )

    @property
    def metadata(self) -> Metadata:
        """What it answers, and from whom it is."""
        return self._own_metadata


def run_of(request: Message) -> RunNews | None:
    """Which run of an app a request is of; None where it is of none."""
    return request.run if isinstance(request, RequestMessage) else None


def most_reply_bytes(request: Message) -> int | None:
    """How large the arrays of an honest reply can be; None where the request does not say it."""
    return request.most_reply_bytes if isinstance(request, BoundedMessage) else None


def most_head_bytes(request: Message) -> int:
    """How large the head of an honest reply can be."""
    return request.most_head_bytes if isinstance(request, BoundedMessage) else LARGEST_HEAD_BYTES


def received_bytes(reply: Message) -> int:
    """How large a reply came over the network; 0 for an error that stands for one."""
    return reply.received_bytes if isinstance(reply, ReplyMessage) else 0


def log_head(reply: Message) -> str | None:
    """What a site says is the hash of its own log with this reply; None where it says none."""
    said = reply.log_head if isinstance(reply, ReplyMessage) else ""
    return said if len(said) == _HASH_LENGTH and set(said) <= _HEXADECIMAL else None
