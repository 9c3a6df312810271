"""Flower's Grid as far as every grid here has the same part of it."""

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid


class MessageGrid(Grid):
    """Its messages are made like any other."""

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """A message; Flower's older way to make one."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)
