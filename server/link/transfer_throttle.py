"""Lets large transfers run one at a time where memory is short."""

import threading
import time
from collections.abc import Callable

LONGEST_PACE_SECONDS = 2.0
LONGEST_WAIT_SECONDS = 25.0  # for the last of all sites; less than the deadline of a site's call


class TransferThrottle:
    """Lets a transfer begin when the latest one has ended, or some time after that one began.

    So sites on a fast line take turns, and the parts under way are those of one site. Where lines
    are slow, transfers overlap: the time is so short that all sites are let in soon, and one that
    falls silent in its transfer keeps nobody waiting for long.
    """

    def __init__(self, num_sites: Callable[[], int]) -> None:
        """`num_sites`: how many may come at once."""
        self._num_sites = num_sites
        self._changed = threading.Condition()
        self._latest: int | None = None  # the node whose transfer began last, until it ends
        self._since = 0.0

    def enter(self, node_id: int) -> None:
        """Wait for one's turn."""
        pace = min(LONGEST_PACE_SECONDS, LONGEST_WAIT_SECONDS / max(1, self._num_sites()))
        end = time.monotonic() + LONGEST_WAIT_SECONDS
        with self._changed:
            while self._latest is not None:
                left = min(self._since + pace, end) - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            self._latest, self._since = node_id, time.monotonic()

    def leave(self, node_id: int) -> None:
        """The node's transfer has ended."""
        with self._changed:
            if self._latest == node_id:
                self._latest = None
                self._changed.notify_all()
