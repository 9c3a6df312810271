"""An observer on a thread of its own, so that no round waits for a network or a disk."""

import contextlib
import queue
import threading
import time

from erosion.common.errors import RunError
from erosion.server.output.events import RunEvent
from erosion.server.output.observer import Observer

MOST_EVENTS = 10_000  # that wait; an observer so far behind will not catch up
CLOSE_SECONDS = 15.0  # for the last events


class InBackground:
    """Hands every event on. Its own methods never wait; a failure shows at the next call."""

    def __init__(self, observer: Observer) -> None:
        """Start the thread; it ends with `close`, or with the process."""
        self._observer = observer
        self._events: queue.Queue[RunEvent | None] = queue.Queue(MOST_EVENTS)
        self._problem: Exception | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def notify(self, event: RunEvent) -> None:
        """Put it into the queue. Raises what the observer raised, or RunError if it is too slow."""
        self._raise_problem()
        try:
            self._events.put_nowait(event)
        except queue.Full:
            self._problem = RunError(f"it is {MOST_EVENTS} events behind")
            self._raise_problem()

    def close(self) -> None:
        """Give it CLOSE_SECONDS to finish; nothing after a failure. Raises as `notify` does."""
        self._raise_problem()
        end = time.monotonic() + CLOSE_SECONDS
        with contextlib.suppress(queue.Full):
            self._events.put(None, timeout=CLOSE_SECONDS)
        self._thread.join(max(0.0, end - time.monotonic()))
        if self._thread.is_alive():
            self._problem = RunError(f"it did not finish within {CLOSE_SECONDS:g} s")
        self._raise_problem()

    def _raise_problem(self) -> None:
        if self._problem is not None:
            raise self._problem

    def _work(self) -> None:
        try:
            while self._problem is None and (event := self._events.get()) is not None:
                self._observer.notify(event)
        except Exception as problem:  # noqa: BLE001 - whatever an observer does wrong
            self._problem = problem
        try:
            self._observer.close()
        except Exception as problem:  # noqa: BLE001 - as above
            self._problem = self._problem or problem
