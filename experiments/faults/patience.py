"""Waiting with a deadline, which is for what hangs: a loaded machine is slow."""

import time
from collections.abc import Callable

POLL_SECONDS = 0.05
PATIENCE_SECONDS = 600.0


def wait_until(wanted: Callable[[], object], excuse: Callable[[], str]) -> None:
    """Until `wanted` is true; raises TimeoutError with `excuse` after PATIENCE_SECONDS."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not wanted():
        if time.monotonic() >= end:
            raise TimeoutError(f"not within {PATIENCE_SECONDS:g} s: {excuse()}")
        time.sleep(POLL_SECONDS)
