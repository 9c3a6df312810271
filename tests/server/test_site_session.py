"""One site's stream at the coordinator: what it may send, and what the run is told of."""

import asyncio
import errno
import gc
from collections.abc import Iterable
from pathlib import Path

import pytest
from flwr.app import RecordDict

from erosion.common.line.frames import Kind, LineFault, frame, json_frame
from erosion.common.protocol.flower_messages import RequestMessage
from erosion.server.link.exchange import Asked, Exchange
from erosion.server.link.file_space import FileSpace
from erosion.server.link.site_session import MOST_FRAMES, Peer, SiteSession

NODE, SESSION = 7, 1


def ask(exchange: Exchange, request_id: str, most_bytes: int = 0) -> None:
    request = RequestMessage(RecordDict(), request_id, NODE, "train", group_id="", ttl=60.0)
    exchange.ask(request_id, Asked(request, NODE, SESSION, most_bytes))


def take_in(exchange: Exchange, frames: Iterable[bytes]) -> None:
    """All within one tick of the line's clock."""
    session = SiteSession(Peer(NODE, "alice", None, ""), SESSION, exchange)
    waiting = iter(frames)

    async def read() -> bytes | None:
        return next(waiting, None)

    asyncio.run(session.read_all(read))


def test_a_site_may_answer_every_request_however_short_the_rounds_are() -> None:
    exchange = Exchange()
    names = [f"r{number}" for number in range(2 * MOST_FRAMES)]
    for name in names:
        ask(exchange, name)
    take_in(exchange, (json_frame(Kind.MESSAGE, {"re": name, "records": {}}) for name in names))
    assert exchange.answered(set(names)) == names


def test_large_heads_that_come_to_nothing_are_more_than_any_site_has_use_for() -> None:
    exchange = Exchange()
    ask(exchange, "r1", most_bytes=8)
    arrays = {"a": {"arrays": [["x", "float32", [2], "erosion.float32.le", 8]]}}
    head = {"re": "r1", "records": arrays, "nothing": "x" * 2**20}
    begun_and_cut = [json_frame(Kind.MESSAGE, head), frame(Kind.CUT)]
    with pytest.raises(LineFault, match="more frames"):
        take_in(exchange, begun_and_cut * (MOST_FRAMES // 10))


def test_a_full_disk_ends_the_run_that_waits_for_the_reply_and_not_the_next_one() -> None:
    exchange, full = Exchange(), OSError(errno.ENOSPC, "No space left on device")
    ask(exchange, "first")
    exchange.fail("first", full)
    with pytest.raises(OSError, match="No space"):
        exchange.raise_problem()
    exchange.forget(["first"])
    exchange.fail("first", full)  # more of a reply that nobody waits for any more
    exchange.raise_problem()


def test_a_file_that_cannot_be_made_leaves_nothing_but_its_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        FileSpace(tmp_path / "gone")
    gc.collect()  # an error on the way would be a warning, and that an error
