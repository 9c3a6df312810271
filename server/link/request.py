"""A Flower message as the line sends it."""

import json
from dataclasses import dataclass

from flwr.app import Message

from erosion.common.errors import LinkError
from erosion.common.line.envelope import describe
from erosion.common.line.frames import LARGEST_HEAD_BYTES, Kind, json_frame
from erosion.common.line.run_news import RunNews
from erosion.common.protocol.flower_messages import most_head_bytes


@dataclass(frozen=True, slots=True, eq=False)
class Content:
    """What a message brings, ready to be sent: to one site or, made once, to hundreds."""

    json: bytes  # describes the arrays, and holds everything else
    buffers: list[memoryview]

    @staticmethod
    def of(message: Message) -> "Content":
        """That of a Flower message."""
        records, buffers = describe(message.content)
        return Content(json.dumps(records, separators=(",", ":")).encode(), buffers)


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A message to a site, ready to be sent."""

    request_id: str
    head: bytes  # a frame
    buffers: list[memoryview]
    most_head_bytes: int = LARGEST_HEAD_BYTES  # of the reply

    @property
    def num_bytes(self) -> int:
        """Of its arrays."""
        return sum(buffer.nbytes for buffer in self.buffers)

    @staticmethod
    def of(
        request_id: str, message: Message, content: Content, run: RunNews | None = None
    ) -> "Request":
        """From a Flower message with this `content`. `run`: for apps that want to know theirs.

        Raises LinkError where no site would take it in.
        """
        metadata = message.metadata
        head = {
            "id": request_id,
            "type": metadata.message_type,
            "group": metadata.group_id,
            "ttl": metadata.ttl,
            **({} if run is None else {"run": run.as_json()}),
        }
        before = json_frame(Kind.MESSAGE, head).removesuffix(b"}")
        frame = b"".join((before, b',"records":', content.json, b"}"))
        if len(frame) - 1 > LARGEST_HEAD_BYTES:  # without the byte that says its kind
            raise LinkError(
                f"A {metadata.message_type} request has {len(frame) - 1:,} bytes beside those of"
                f" its arrays; sites take in {LARGEST_HEAD_BYTES:,}. Send less in its metrics and"
                " configs, or send that as arrays."
            )
        return Request(
            request_id,
            frame,
            content.buffers,
            most_head_bytes(message),
        )
