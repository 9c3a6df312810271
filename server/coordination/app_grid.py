"""The line as an ordinary Flower Grid, for a ServerApp that knows nothing of it."""

from collections.abc import Iterable
from typing import Any

from flwr.app import Message

from erosion.server.link import LinkGrid
from erosion.server.link.message_grid import MessageGrid


class AppGrid(MessageGrid):
    """Replies come as a list: Flower's own strategies walk them more than once."""

    def __init__(self, grid: LinkGrid) -> None:
        self._grid = grid

    def set_run(self, run: Any) -> None:
        """Kept for `run`."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """What `set_run` was given."""
        return self._grid.run

    def get_node_ids(self) -> list[int]:
        """The sites that are connected."""
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send, and do not wait."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """What has come back by now."""
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Ask, and wait for all answers, or as long as `timeout` says."""
        return list(self._grid.send_and_receive(messages, timeout=timeout))
