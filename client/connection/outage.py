"""The time in which the coordinator is out of reach, and the pauses between tries to come back."""

import random
import time

FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 0.2, 10.0
MOST_DOUBLINGS = 10  # of the first; more than it takes to the last
STEADY_SECONDS = 10.0  # of a connection; one that breaks earlier, unused, is no sign of recovery


class Outage:
    """Begins with the first failed try, and ends with a connection that was of use."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._tries = 0
        self._said = ""  # why, as it was told last

    def is_news(self, why: str) -> bool:
        """Another try has failed; whether for another reason than it was told before."""
        if self._began is None:
            self._began = time.monotonic()
        before, self._said = self._said, why
        return why != before

    def connected(self) -> None:
        """A connection stands: whatever ends it is news."""
        self._said = ""

    def disconnected(self, since: float, *, was_used: bool) -> None:
        """The connection that stood `since` then has ended."""
        if was_used or time.monotonic() - since >= STEADY_SECONDS:
            self._began, self._tries = None, 0

    @property
    def seconds(self) -> float:
        """How long it has lasted."""
        return 0.0 if self._began is None else time.monotonic() - self._began

    def next_pause(self) -> float:
        """Seconds until the next try; full jitter: a hundred sites must not come back at once."""
        doubled = min(self._tries, MOST_DOUBLINGS)  # an outage of hours is a thousand tries
        longest = min(LAST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2**doubled)
        self._tries += 1
        return random.uniform(FIRST_RETRY_SECONDS / 2, longest)
