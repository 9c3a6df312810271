"""Waiting with a deadline."""

import time
from collections.abc import Callable

POLL_SECONDS = 0.05


def wait_until(wanted: Callable[[], object], seconds: float, excuse: Callable[[], str]) -> None:
    """Until `wanted` is true; raises TimeoutError with `excuse` after `seconds`."""
    end = time.monotonic() + seconds
    while not wanted():
        if time.monotonic() >= end:
            raise TimeoutError(f"not within {seconds:g} s: {excuse()}")
        time.sleep(POLL_SECONDS)
