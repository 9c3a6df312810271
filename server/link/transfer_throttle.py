"""Lets large transfers run one at a time where memory is short."""

import asyncio
import time
from collections.abc import Callable

LONGEST_PACE_SECONDS = 2.0
LONGEST_WAIT_SECONDS = 25.0  # for the last of all sites


class TransferThrottle:
    """Lets a transfer begin when the latest one has ended, or some time after that one began.

    So sites on a fast line take turns, and the parts under way are those of one site. Where lines
    are slow, transfers overlap: the time is so short that all sites are let in soon, and one that
    falls silent in its transfer keeps nobody waiting for long. For one event loop.
    """

    def __init__(self, num_sites: Callable[[], int]) -> None:
        """`num_sites`: how many may come at once."""
        self._num_sites = num_sites
        self._changed = asyncio.Condition()
        self._latest: object | None = None  # the transfer that began last, until it ends
        self._since = 0.0

    async def enter(self, transfer: object) -> None:
        """Wait for one's turn."""
        pace = min(LONGEST_PACE_SECONDS, LONGEST_WAIT_SECONDS / max(1, self._num_sites()))
        end = time.monotonic() + LONGEST_WAIT_SECONDS
        async with self._changed:
            while self._latest is not None:
                left = min(self._since + pace, end) - time.monotonic()
                if left <= 0:
                    break
                try:
                    await asyncio.wait_for(self._changed.wait(), left)
                except TimeoutError:
                    continue
            self._latest, self._since = transfer, time.monotonic()

    async def leave(self, transfer: object) -> None:
        """The transfer has ended."""
        async with self._changed:
            if self._latest is transfer:
                self._latest = None
                self._changed.notify_all()
