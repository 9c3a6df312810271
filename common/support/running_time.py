"""Seconds in which this program has run: those in which it was stopped are not counted.

A virtual machine that is suspended, or a process that is frozen, finds every deadline passed when
it goes on, although nobody had the time to do anything. Neither this nor the wall clock may decide
who is alive: the monotonic clock does, less the gaps in which this program did not run.
"""

import threading
import time
from collections.abc import Callable

TICK_SECONDS = 1.0  # how often somebody looks at the clock, at least
GAP_SECONDS = 6.0  # between two looks; a program that ran would have looked


class RunningTime:
    """A clock for deadlines. Whoever looks first after a gap takes it out for all."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic, self._lock = monotonic, threading.Lock()
        self._seen, self._stopped = monotonic(), 0.0

    def now(self) -> float:
        """Seconds since some moment. Call it every TICK_SECONDS at least."""
        with self._lock:
            seen = self._monotonic()
            if (gap := seen - self._seen) >= GAP_SECONDS:
                self._stopped += gap - TICK_SECONDS
            self._seen = seen
            return seen - self._stopped
