"""Waiting for a database no longer than the site file allows."""

import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def within(seconds: float, work: Callable[[], T], cancel: Callable[[], None]) -> T:
    """The result of `work`; raises TimeoutError after `seconds`, when `cancel` was called.

    A driver that cannot be cancelled is left behind in its thread, which keeps nobody from ending.
    """
    results: list[T] = []
    problems: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as problem:  # noqa: BLE001 - raised again in the thread that waits
            problems.append(problem)

    worker = threading.Thread(target=run, name="database", daemon=True)
    worker.start()
    worker.join(seconds)
    if worker.is_alive():
        with contextlib.suppress(Exception):  # the work may end right now, and close its connection
            cancel()
        raise TimeoutError
    if problems:
        raise problems[0]
    return results[0]
