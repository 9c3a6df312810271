"""Everything that follows a run: a terminal, a file, a tracking server; and none can end it."""

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Mapping
from copy import deepcopy
from typing import Protocol, Self

from erosion_common.errors import ErosionError, RunError
from erosion_common.settings.packages import blamed
from erosion_server.output.events import ObserverDropped, RunEvent
from erosion_server.output.words import printable

logger = logging.getLogger("erosion.output")

MOST_EVENTS = 10_000  # that wait; an observer so far behind will not catch up
CLOSE_SECONDS = 15.0  # for the last events


class Observer(Protocol):
    """Receives every event in its order, from one thread, and ignores unknown ones."""

    def notify(self, event: RunEvent) -> None:
        """Something happened."""

    def close(self) -> None:
        """Nothing more will happen; also called after an error, Ctrl-C, or its own failure."""


class Observers:
    """Notifies each observer in order; the run writes journal, checkpoints and result itself."""

    def __init__(self, observers: Mapping[str, Observer]) -> None:
        """`observers` by the names that people know them by."""
        self._observers = dict(observers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close every observer, also after an error or Ctrl-C."""
        for name, observer in list(self._observers.items()):
            try:
                observer.close()
            except Exception as trouble:  # noqa: BLE001 - an observer may raise anything
                self._drop(name, trouble)

    def add(self, name: str, observer: Observer) -> None:
        """Notify this one too from now on."""
        self._observers[name] = observer

    def notify(self, event: RunEvent) -> None:
        """Notify everybody; raises nothing that an observer raises."""
        for name, observer in list(self._observers.items()):
            if name not in self._observers:
                continue  # dropped meanwhile, by what it made of another's dropping
            try:
                observer.notify(event)
            except Exception as problem:  # noqa: BLE001 - an observer may raise anything
                self._drop(name, problem)

    def _drop(self, name: str, problem: Exception) -> None:
        observer = self._observers.pop(name)
        kind = "" if isinstance(problem, ErosionError) else f"{type(problem).__name__}: "
        reason = printable(". ".join(filter(None, (f"{kind}{problem}", blamed(problem)))))
        logger.debug("the output %s", name, exc_info=problem)
        logger.warning("The output %s failed and is left out from now on: %s", name, reason)
        self.notify(ObserverDropped(name, reason))
        try:
            observer.close()
        except Exception as again:  # noqa: BLE001 - it has been reported
            logger.debug("closing the output %s: %s", name, again)


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
                self._observer.notify(deepcopy(event))  # a package's may change what it gets
        except (Exception, SystemExit) as problem:  # noqa: BLE001 - an observer may raise anything
            self._problem = (
                RunError("it tried to end the program")
                if isinstance(problem, SystemExit)
                else problem
            )
        try:
            self._observer.close()
        except Exception as problem:  # noqa: BLE001 - as above
            self._problem = self._problem or problem
