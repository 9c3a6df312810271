"""Waiting for a database: whatever its driver says when it is told to stop, the wait has ended."""

import threading

import pytest

from erosion.client.dataset.sources.data_source import within


def test_work_that_ends_while_it_is_given_up_is_given_up() -> None:
    """Its connection is closed then, of which drivers complain in words of their own."""
    given_up = threading.Event()

    def cancel() -> None:
        given_up.set()
        raise RuntimeError("cannot operate on a closed database")

    with pytest.raises(TimeoutError):
        within(0.01, given_up.wait, cancel)
