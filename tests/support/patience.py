"""Waiting in tests.

A loaded machine is slow, so no test asserts how long something took: it waits this long for what
must happen, and fails only where it does not happen at all.
"""

import time
from collections.abc import Callable

PATIENCE = 600.0  # seconds


def wait_until(condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {seconds:g} s"
        time.sleep(0.05)
