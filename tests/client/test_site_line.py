"""A site's end of the line: the requests that wait while it trains."""

import gc
import re
import threading
import weakref
from collections.abc import Callable, Iterator

import pytest
from flwr.app import Message

from erosion_client.connection import site_link
from erosion_client.connection.credentials import dial
from erosion_client.connection.site_link import MOST_WAITING, SiteLink
from erosion_common.protocol.frames import Kind, ProtocolFault, frame, json_frame
from tests.support.connect_proxy import ConnectProxy
from tests.support.said import raises

NUM_BYTES = 1000


@pytest.fixture
def line() -> Iterator[SiteLink]:
    """One on which nobody calls: what comes is handed to it."""
    line = SiteLink("127.0.0.1:1")
    yield line
    line._close()


def come(line: SiteLink, request_id: str) -> None:
    arrays = {"a": {"arrays": [["x", "uint8", [NUM_BYTES], "erosion.uint8", NUM_BYTES]]}}
    head = {"id": request_id, "type": "train", "group": "a/1", "ttl": 60, "records": arrays}
    line._take(json_frame(Kind.MESSAGE, {**head, "run": {"number": 1, "config": {}, "node": 2}}))
    line._take(frame(Kind.DATA, bytes(NUM_BYTES)))


def drop(line: SiteLink, request_id: str) -> None:
    line._take(frame(Kind.DROP, request_id.encode()))


def test_dropped_requests_leave_nothing(line: SiteLink, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[Message]] = []
    request_of = site_link._request

    def noted(*described: object) -> Message:
        request = request_of(*described)  # type: ignore[arg-type]
        made.append(weakref.ref(request))
        return request

    monkeypatch.setattr(site_link, "_request", noted)
    for number in range(100):
        come(line, f"r{number}")
        drop(line, f"r{number}")
    gc.collect()
    assert len(made) == 100
    assert not any(request() for request in made)
    assert line.receive(0.0) is None


def test_requests_come_in_order(line: SiteLink) -> None:
    drop(line, "r0")
    for number in range(4):
        come(line, f"r{number}")
    drop(line, "r2")
    received = [line.receive(0.0) for _ in range(3)]
    assert [each and each.metadata.message_id for each in received] == ["r1", "r3", None]


def test_what_a_site_keeps_of_requests_that_wait_is_bounded(line: SiteLink) -> None:
    come(line, "r1")
    ((_, each),) = line._waiting.values()
    assert each > NUM_BYTES  # a head may have megabytes
    line._most_bytes = 2 * each
    come(line, "r2")
    with raises(ProtocolFault, "requests", f"{2 * each} bytes"):
        come(line, "r3")
    line._most_bytes = 2 * MOST_WAITING * each
    for number in range(3, MOST_WAITING + 1):
        come(line, f"r{number}")
    with raises(ProtocolFault, "more", f"{MOST_WAITING} requests"):
        come(line, "one more")


@pytest.mark.parametrize("password", ["hush", "hu/sh", "hu#sh?", "hu@sh", "hu%40sh", "hü sh"])
def test_a_proxy_is_shown_the_same_password_by_the_line_as_by_the_check(password: str) -> None:
    with ConnectProxy("127.0.0.1:9", refuses="407 Proxy Authentication Required") as gate:
        proxy = f"joe:{password}@{gate.address}"
        with raises(OSError, "407"):
            dial("coordinator.example.org:9092", proxy, 5.0)
        welcome = SiteLink("coordinator.example.org:9092", proxy=proxy).check(seconds=5.0)
        assert welcome.problem is not None
        shown = [re.findall(r"(?i)proxy-authorization: (\S+ \S+)", head) for head in gate.asked]
    assert len(shown) >= 2
    assert all(one == shown[0] != [] for one in shown)


@pytest.mark.parametrize("connect", [SiteLink.__enter__, lambda line: line.check(seconds=5.0)])
def test_a_site_that_is_stopped_while_it_begins_to_connect_ends(
    connect: Callable[[SiteLink], object], line: SiteLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GRPC then has a call that nobody ends, and waits for its end when the channel is closed."""
    is_over, begun = threading.Event(), threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        monkeypatch.setattr(threading.Thread, "start", begun)
        raise KeyboardInterrupt

    def closes() -> None:
        close()
        is_over.set()

    close = line._channel.close
    monkeypatch.setattr(line._channel, "close", closes)
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        connect(line)
    assert not is_over.is_set()
