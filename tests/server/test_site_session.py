"""One site's stream at the coordinator: what it may send, and what the run is told of."""

import asyncio
import errno
import gc
import weakref
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path

import pytest
from flwr.app import RecordDict

from erosion_common.protocol import envelope
from erosion_common.protocol.envelope import MemorySpace
from erosion_common.protocol.flower import RequestMessage
from erosion_common.protocol.frames import (
    LARGEST_HEAD_BYTES,
    Kind,
    ProtocolFault,
    frame,
    json_frame,
)
from erosion_server.link import spool
from erosion_server.link.channel import Mailbox, OpenRequests, Pending, Request
from erosion_server.link.site_session import (
    LARGE_BYTES,
    MOST_FRAMES,
    PING_TICKS,
    SILENT_TICKS,
    Peer,
    SiteSession,
)
from erosion_server.link.spool import Spool, TransferThrottle
from tests.support.refusals import refused

NODE, SESSION = 7, 1
LARGE = {"a": {"arrays": [["x", "uint8", [LARGE_BYTES], "raw", LARGE_BYTES]]}}


def ask(
    exchange: OpenRequests, request_id: str, most_bytes: int = 0, mailbox: Mailbox | None = None
) -> Mailbox:
    mailbox = mailbox or Mailbox()
    request = RequestMessage(RecordDict(), request_id, NODE, "train", group_id="", ttl=60.0)
    exchange.ask(request_id, Pending(request, NODE, SESSION, most_bytes, mailbox))
    return mailbox


def session_on(exchange: OpenRequests, throttle: TransferThrottle | None = None) -> SiteSession:
    throttle = throttle or TransferThrottle(lambda: 2)
    return SiteSession(Peer(NODE, "alice", None, ""), SESSION, exchange, throttle)


def take_in(
    exchange: OpenRequests, frames: Iterable[bytes], *, most_head_bytes: int = LARGEST_HEAD_BYTES
) -> None:
    """All within one tick of the line's clock, by a site that was asked for so large a head."""
    session = session_on(exchange)
    session.ask(Request("r", b"", [], most_head_bytes))
    waiting = iter(frames)

    async def read() -> bytes | None:
        return next(waiting, None)

    asyncio.run(session.read_all(read))


def test_a_site_may_answer_every_request_however_short_the_rounds_are() -> None:
    exchange = OpenRequests()
    names = [f"r{number}" for number in range(2 * MOST_FRAMES)]
    for name in names:
        ask(exchange, name)
    take_in(exchange, (json_frame(Kind.MESSAGE, {"re": name, "records": {}}) for name in names))
    assert exchange.answered(set(names)) == names


def test_large_heads_that_come_to_nothing_are_more_than_any_site_has_use_for() -> None:
    exchange = OpenRequests()
    ask(exchange, "r1", most_bytes=8)
    arrays = {"a": {"arrays": [["x", "float32", [2], "erosion.float32.le", 8]]}}
    head = {"re": "r1", "records": arrays, "nothing": "x" * 2**20}
    begun_and_cut = [json_frame(Kind.MESSAGE, head), frame(Kind.CUT)]
    with refused(ProtocolFault, "frames"):
        take_in(exchange, begun_and_cut * (MOST_FRAMES // 10))


def test_of_a_reply_that_nobody_waits_for_any_more_nothing_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A site that lives may leave it unfinished for as long as it likes."""
    spaces: list[weakref.ref[MemorySpace]] = []

    def space(num_bytes: int) -> MemorySpace:
        made = MemorySpace(num_bytes)
        spaces.append(weakref.ref(made))
        return made

    monkeypatch.setattr(envelope, "MemorySpace", space)
    exchange, half = OpenRequests(), frame(Kind.DATA, bytes(LARGE_BYTES // 2))
    ask(exchange, "late", most_bytes=LARGE_BYTES)
    ask(exchange, "next")
    session = session_on(exchange)

    def frames() -> Iterator[bytes]:
        yield json_frame(Kind.MESSAGE, {"re": "late", "records": LARGE})
        yield half
        assert [each() for each in spaces] != [None]
        exchange.forget(["late"])
        session.drop("late")
        gc.collect()
        assert [each() for each in spaces] == [None]
        yield half
        yield json_frame(Kind.MESSAGE, {"re": "next", "records": {}})

    come = frames()

    async def read() -> bytes | None:
        return next(come, None)

    asyncio.run(session.read_all(read))
    assert exchange.answered({"late", "next"}) == ["next"]


def test_a_head_that_no_request_needs_is_not_read() -> None:
    exchange = OpenRequests()
    ask(exchange, "r1")
    records = {"a": {"config": {"json": "x" * 2**17}}}
    reply = json_frame(Kind.MESSAGE, {"re": "r1", "records": records})
    take_in(exchange, [reply], most_head_bytes=2**18)
    assert exchange.answered({"r1"}) == ["r1"]
    with refused(ProtocolFault, "head"):
        take_in(exchange, [reply], most_head_bytes=2**16)


def test_a_full_disk_ends_the_study_that_waits_for_the_reply_and_no_other() -> None:
    exchange, full = OpenRequests(), OSError(errno.ENOSPC, "No space left on device")
    first, second = ask(exchange, "first"), ask(exchange, "second")
    exchange.fail("first", full)
    assert (first.problem, second.problem) == (full, None)
    exchange.forget(["second"])
    exchange.fail("second", full)  # more of a reply that nobody waits for any more
    assert second.problem is None


class Played:
    """A session on a line that takes everything at once; ticks pass only as a test lets them."""

    def __init__(self, exchange: OpenRequests, throttle: TransferThrottle | None = None) -> None:
        self.session = session_on(exchange, throttle)
        self.arriving: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.written: list[Kind] = []

    async def write(self, sent: bytes) -> None:
        self.written.append(Kind(sent[0]))

    async def pings_in(self, num_ticks: int, *, heard: bytes | None = None) -> int:
        """How many were sent in so many ticks, in each of which `heard` came."""
        before = self.written.count(Kind.PING)
        for _ in range(num_ticks):
            if heard is not None:
                self.arriving.put_nowait(heard)
            await settled()
            self.session.tick()
            await settled()
        return self.written.count(Kind.PING) - before


async def settled() -> None:
    """All that can go on without time has gone on."""
    for _ in range(20):
        await asyncio.sleep(0)


def play(played: Played, script: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        work = [
            asyncio.ensure_future(played.session.read_all(played.arriving.get)),
            asyncio.ensure_future(played.session.write_all(played.write)),
        ]
        try:
            await script()
            assert not any(each.done() for each in work)
        finally:
            for each in work:
                each.cancel()
            await asyncio.gather(*work, return_exceptions=True)

    asyncio.run(run())


def test_a_site_that_is_told_much_is_asked_whether_it_lives_and_given_up() -> None:
    played = Played(OpenRequests())

    async def script() -> None:
        for tick in range(1, SILENT_TICKS):
            played.session.drop(f"r{tick}")
            pings = await played.pings_in(1)
            assert pings == (tick % PING_TICKS == 0)
        assert not played.session.over.is_set()
        await played.pings_in(1)
        assert played.session.over.is_set()

    play(played, script)


def test_a_site_whose_reply_waits_for_its_turn_hears_of_the_coordinator(tmp_path: Path) -> None:
    exchange, throttle = OpenRequests(), TransferThrottle(lambda: 2)
    ask(exchange, "r1", LARGE_BYTES, Mailbox(Spool(tmp_path)))
    played = Played(exchange, throttle)

    async def script() -> None:
        await throttle.enter("another's")
        played.arriving.put_nowait(json_frame(Kind.MESSAGE, {"re": "r1", "records": LARGE}))
        assert await played.pings_in(2 * SILENT_TICKS) == 2 * SILENT_TICKS // PING_TICKS
        assert not played.session.over.is_set()  # its silence says nothing

    play(played, script)


def test_a_site_whose_request_waits_for_its_turn_hears_of_the_coordinator(tmp_path: Path) -> None:
    throttle = TransferThrottle(lambda: 2)
    played = Played(OpenRequests(), throttle)

    async def script() -> None:
        await throttle.enter("another's")
        head = json_frame(Kind.MESSAGE, {"id": "r1"})
        played.session.ask(
            Request("r1", head, [memoryview(bytes(LARGE_BYTES))], spool=Spool(tmp_path))
        )
        pong = frame(Kind.PONG)
        assert await played.pings_in(3 * PING_TICKS, heard=pong) == 3
        played.session.drop("r0")
        await settled()
        assert set(played.written) == {Kind.PING, Kind.DROP}
        await throttle.leave("another's")
        await settled()
        assert Kind.DATA in played.written

    play(played, script)


@pytest.mark.parametrize("num_buffers", [0, 1])
def test_a_request_dropped_while_its_last_frame_is_on_its_way_is_known_to_be_dropped(
    num_buffers: int,
) -> None:
    played = Played(OpenRequests())
    last = Kind.DATA if num_buffers else Kind.MESSAGE
    gate = asyncio.Event()
    write = played.write

    async def write_slowly(sent: bytes) -> None:
        if Kind(sent[0]) is last:
            await gate.wait()
        await write(sent)

    played.write = write_slowly  # type: ignore[method-assign]

    async def script() -> None:
        head = json_frame(Kind.MESSAGE, {"id": "r1"})
        played.session.ask(Request("r1", head, [memoryview(bytes(1000))] * num_buffers))
        await settled()
        played.session.drop("r1")
        gate.set()
        await settled()
        assert played.written[-2:] == [last, Kind.DROP]

    play(played, script)


# -- Large transfers one after the other ---------------------------------------------------------


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
