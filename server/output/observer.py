"""The interface of everything that follows a run: a terminal, a file, a tracking server."""

from typing import Protocol

from erosion.server.output.events import RunEvent


class Observer(Protocol):
    """Receives every event in its order, from one thread. Unknown events are to be ignored.

    It may fail in any way but never decides over the run: see `observers`.
    """

    def notify(self, event: RunEvent) -> None:
        """Something happened."""

    def close(self) -> None:
        """Nothing more will happen; also called after an error, Ctrl-C, or its own failure."""
