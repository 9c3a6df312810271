"""A connection to a coordinator that breaks."""

from types import TracebackType
from typing import Self

from flwr.app import Message, RecordDict

from erosion_client.connection.site_link import LostLink, Welcome
from erosion_common.protocol.flower import RequestMessage


class BreaksAfterTheWelcome:
    """A connection that brings so many requests and ends; it stands in for a SiteLink."""

    def __init__(self, num_requests: int) -> None:
        self.welcome, self._num_requests = Welcome(), num_requests

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Nothing is open."""

    def receive(self, _seconds: float) -> Message:
        if not self._num_requests:
            raise LostLink("it sent a head of 6842066 bytes; at most 4194304 are accepted")
        self._num_requests -= 1
        return RequestMessage(RecordDict(), "r", 2, "train", group_id="", ttl=60.0)

    def is_dropped(self, request: Message) -> bool:
        return request.metadata.group_id == "comes too late"

    def reply(self, _request: Message, _reply: Message, _log_head: str | None) -> None:
        """It has gone."""
