"""The line as an ordinary Flower Grid, for a ServerApp that knows nothing of it."""

from collections.abc import Iterable
from threading import Lock
from types import SimpleNamespace
from typing import Any

from flwr.app import Message

from erosion.server.link import LinkGrid
from erosion.server.link.channel import LONGEST_ROUND_SECONDS, MessageGrid

LOOK_SECONDS = 0.05  # between two looks of a thread whose news another one has taken


class AppGrid(MessageGrid):
    """Replies come as a list: Flower's own strategies walk them more than once.

    An app with `server_fn` asks each of its clients in a thread of its own, and knows its run by
    number.
    """

    def __init__(self, grid: LinkGrid, run_id: int) -> None:
        self._grid, self._lock = grid, Lock()
        self._grid.set_run(SimpleNamespace(run_id=run_id))

    def set_run(self, run: Any) -> None:
        """Kept for `run`."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """What `set_run` was given; before that, what has the run's number."""
        return self._grid.run

    def get_node_ids(self) -> list[int]:
        """The sites that are connected."""
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send, and do not wait."""
        with self._lock:
            return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """What has come back by now."""
        with self._lock:
            return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Ask, and wait for all answers, or as long as `timeout` says."""
        waiting, replies = set(self.push_messages(messages)), list[Message]()
        clock = self._grid.clock
        end = clock.now() + (LONGEST_ROUND_SECONDS if timeout is None else timeout)
        try:
            while waiting:
                is_over = clock.now() >= end
                for reply in self.pull_messages(waiting):
                    waiting.discard(reply.metadata.reply_to_message_id)
                    replies.append(reply)
                if is_over:
                    break
                if waiting:
                    self._grid.wait_for_news(min(LOOK_SECONDS, max(0.0, end - clock.now())))
        finally:
            self._grid.forget(waiting)
        return replies
