"""Large transfers one after the other."""

import threading

import pytest

from erosion.server.link import transfer_throttle
from erosion.server.link.transfer_throttle import TransferThrottle


def entering(stile: TransferThrottle, node_id: int) -> threading.Thread:
    thread = threading.Thread(target=stile.enter, args=(node_id,), daemon=True)
    thread.start()
    return thread


def test_the_next_transfer_begins_when_the_latest_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transfer_throttle, "LONGEST_PACE_SECONDS", 600.0)
    monkeypatch.setattr(transfer_throttle, "LONGEST_WAIT_SECONDS", 1200.0)
    stile = TransferThrottle(lambda: 2)
    stile.enter(1)
    second = entering(stile, 2)
    stile.leave(3)  # which is not under way
    second.join(0.2)
    assert second.is_alive()
    stile.leave(1)
    second.join(10)
    assert not second.is_alive()
    stile.leave(1)  # once more: the second is under way now
    third = entering(stile, 3)
    third.join(0.2)
    assert third.is_alive()
    stile.leave(2)
    third.join(10)
    assert not third.is_alive()


def test_a_site_that_falls_silent_keeps_nobody_waiting_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transfer_throttle, "LONGEST_PACE_SECONDS", 0.05)
    stile = TransferThrottle(lambda: 10)
    for node_id in range(10):
        thread = entering(stile, node_id)
        thread.join(10)  # none of them leaves
        assert not thread.is_alive()


def test_many_sites_are_let_in_at_a_faster_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer_throttle, "LONGEST_PACE_SECONDS", 600.0)
    stile = TransferThrottle(lambda: 1000)  # 25 ms each
    threads = [entering(stile, node_id) for node_id in range(20)]
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
