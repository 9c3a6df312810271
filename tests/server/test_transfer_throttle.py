"""Large transfers one after the other."""

import asyncio

import pytest

from erosion_server.link import spool
from erosion_server.link.spool import TransferThrottle


def test_the_next_transfer_begins_when_the_latest_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spool, "LONGEST_PACE_SECONDS", 600.0)
    monkeypatch.setattr(spool, "LONGEST_WAIT_SECONDS", 1200.0)

    async def play() -> None:
        throttle = TransferThrottle(lambda: 2)
        first, second, third = object(), object(), object()
        await throttle.enter(first)
        entering = asyncio.ensure_future(throttle.enter(second))
        await throttle.leave(third)  # which is not under way
        await asyncio.sleep(0.05)
        assert not entering.done()
        await throttle.leave(first)
        await asyncio.wait_for(entering, 60)
        await throttle.leave(first)  # once more: the second is under way now
        entering = asyncio.ensure_future(throttle.enter(third))
        await asyncio.sleep(0.05)
        assert not entering.done()
        await throttle.leave(second)
        await asyncio.wait_for(entering, 60)

    asyncio.run(play())


def test_a_site_that_falls_silent_keeps_nobody_waiting_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spool, "LONGEST_PACE_SECONDS", 0.05)

    async def play() -> None:
        throttle = TransferThrottle(lambda: 10)
        for _ in range(10):
            await asyncio.wait_for(throttle.enter(object()), 60)  # none of them leaves

    asyncio.run(play())


def test_many_sites_are_let_in_at_a_faster_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "LONGEST_PACE_SECONDS", 600.0)

    async def play() -> None:
        throttle = TransferThrottle(lambda: 1000)  # 25 ms each
        entering = [throttle.enter(object()) for _ in range(20)]
        await asyncio.wait_for(asyncio.gather(*entering), 60)

    asyncio.run(play())
