"""The coordinator's end of the line: its connections, where updates are kept, what is sent."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Error, Message, RecordDict

from erosion_client.connection import site_link
from erosion_client.connection.site_link import SiteLink
from erosion_common.errors import LinkError
from erosion_common.protocol.flower import BoundedMessage, to_array, to_record
from erosion_common.protocol.frames import LARGEST_HEAD_BYTES, LONGEST_REASON, MODEST_DATA_BYTES
from erosion_server.link import Link
from erosion_server.link import link as link_module
from erosion_server.link.channel import Content, Request
from erosion_server.link.link import make_link, most_connections
from erosion_server.link.service import Service, certificate_of
from erosion_server.link.site_session import SiteSession
from experiments.slow_line import SlowLine
from tests.support.patience import PATIENCE, wait_until
from tests.support.refusals import refused


def test_connections_are_bound_by_files_and_by_memory_and_some_are_always_taken() -> None:
    sixteen_gigabytes = 2**34
    assert most_connections(1024, sixteen_gigabytes) == 768
    assert most_connections(2**20, sixteen_gigabytes) == 65_536
    assert most_connections(2**20, 2**30) == 4096
    assert most_connections(100, sixteen_gigabytes) == 64


def test_each_study_has_a_spool_folder_that_goes_with_its_channel(tmp_path: Path) -> None:
    link = Link("127.0.0.1:0")
    first, second, third = (
        link.open(tmp_path / "first"),
        link.open(tmp_path / "second"),
        link.open(),
    )
    assert first.updates == tmp_path / "first" / "updates"
    assert second.updates == tmp_path / "second" / "updates"
    assert third.updates is None
    first.close()
    assert [path.name for path in tmp_path.iterdir()] == ["second"]


def test_a_port_that_is_not_open_in_time_is_said_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    link = Link("127.0.0.1:0")

    async def never() -> int:
        await asyncio.Event().wait()
        return 0

    monkeypatch.setattr(link, "_open", never)
    monkeypatch.setattr(link_module, "START_SECONDS", 0.01)
    with refused(LinkError):
        link.start()


@pytest.mark.parametrize(
    "said",
    [
        {"time": "2026-01-01T12:00:00", "expires": "2026-01-01", "certificate_expires": "soon"},
        dict.fromkeys(("time", "expires", "certificate_expires"), "0001-01-01T00:00:00+14:00"),
        dict.fromkeys(("time", "expires", "certificate_expires"), "9999-12-31T23:59:59-12:00"),
    ],
)
def test_a_time_that_could_be_anywhere_or_is_none_tells_a_site_nothing(
    said: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Service._welcome
    monkeypatch.setattr(Service, "_welcome", lambda *given: {**told(*given), **said})
    link = Link("127.0.0.1:0")
    link.start()
    try:
        welcome = SiteLink(link.address).check(seconds=PATIENCE)
    finally:
        link.stop()
    assert welcome.problem is None
    assert (welcome.ahead, welcome.expires, welcome.certificate_expires) == (None, None, None)


@pytest.mark.parametrize(
    ("hospitals", "frame", "ahead"),
    [(2, 2**21, 2**21), (0, 2**19, 2**19), (64, 2**18, 2**17), (1000, 2**18, 2**17)],
)
def test_the_more_hospitals_there_are_the_less_of_each_arrives_before_it_is_read(
    hospitals: int, frame: int, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, options = Service._welcome, link_module._options
    seen: list[object] = []

    def welcome(*given: Any) -> dict[str, Any]:
        seen.append(told(*given)["frame_bytes"])
        return told(*given)

    def noted(*given: Any) -> list[tuple[str, int]]:
        seen.append(dict(options(*given))["grpc.http2.lookahead_bytes"])
        return options(*given)

    monkeypatch.setattr(Service, "_welcome", welcome)
    monkeypatch.setattr(link_module, "_options", noted)
    link = make_link([f"site{number}" for number in range(hospitals)], "127.0.0.1:0", None)
    link.start()
    try:
        assert SiteLink(link.address).check(seconds=PATIENCE).problem is None
    finally:
        link.stop()
    assert seen == [ahead, frame]


def test_what_cannot_be_taken_in_for_a_reason_of_our_own_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def no_memory(_session: SiteSession, _received: bytes) -> None:
        raise MemoryError("7 GiB")

    monkeypatch.setattr(SiteSession, "_take", no_memory)
    with connected() as (link, line, node_id):
        _, request = asked(link, line, Message(RecordDict(), node_id, "train"))
        line.reply(request, Message(RecordDict(), reply_to=request))
        wait_until(lambda: not link.grid.get_node_ids())
    assert any(f" {node_id} " in line and "7 GiB" in line for line in caplog.messages)


def reply_to(link: Link, waiting: list[str]) -> Message:
    replies: list[Message] = []
    while not replies:
        link.grid.wait_for_news(PATIENCE)
        replies = link.grid.pull_messages(waiting)
    return replies[0]


@contextmanager
def connected(bits_per_second: float | None = None) -> Iterator[tuple[Link, SiteLink, int]]:
    """A coordinator, the only site that is connected to it, over a slow line, and its node."""
    link = Link("127.0.0.1:0")
    link.start()
    try:
        with ExitStack() as stack:
            address = link.address
            if bits_per_second is not None:
                address = stack.enter_context(SlowLine(bits_per_second, 0.01).to(address))
            line = stack.enter_context(SiteLink(address))
            wait_until(lambda: link.grid.get_node_ids())
            (node_id,) = link.grid.get_node_ids()
            yield link, line, node_id
    finally:
        link.stop()


def asked(link: Link, line: SiteLink, message: Message) -> tuple[list[str], Message]:
    """What the coordinator waits for now, and the request as the site has it."""
    waiting = link.grid.push_messages([message])
    request = line.receive(PATIENCE)
    assert request is not None
    return list(waiting), request


def test_a_model_and_an_update_of_many_frames_go_over_a_slow_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What gRPC and the kernel have taken keeps the line busy for longer than silence is borne."""
    for module in (link_module, site_link):
        monkeypatch.setattr(module, "TICK_SECONDS", 0.1)
    values = torch.ones(6 * MODEST_DATA_BYTES // 4)  # 8 s; it is 2.5 s of silence that are borne

    def content() -> RecordDict:
        return RecordDict({"arrays": to_record({"values": to_array(values)})})

    with connected(1.5e6) as (link, line, node_id):
        waiting, request = asked(link, line, Message(content(), node_id, "train"))
        line.reply(request, Message(content(), reply_to=request))
        reply = reply_to(link, waiting)
    assert not reply.has_error(), reply.error


def test_the_words_of_a_site_that_declines_endlessly_are_cut() -> None:
    with connected() as (link, line, node_id):
        message = BoundedMessage(
            RecordDict(), node_id, "train", most_reply_bytes=0, ttl=PATIENCE, most_head_bytes=2**17
        )
        waiting, request = asked(link, line, message)
        line.reply(request, Message(Error(1, "ä" * 2**14), reply_to=request))
        reply = reply_to(link, waiting)
    assert reply.error.reason == "ä" * LONGEST_REASON


def test_a_request_that_no_site_would_take_in_is_not_sent() -> None:
    content = RecordDict({"a": ConfigRecord({"text": "x" * LARGEST_HEAD_BYTES})})
    message = Message(content, 7, "train")
    with refused(LinkError, " 4,194,"):
        Request.of("r1", message, Content.of(message))


class Shows:
    """A call's context, on a line whose other side has shown this certificate; None: no TLS."""

    def __init__(self, pem: bytes | None) -> None:
        self._pem = pem

    def auth_context(self) -> dict[str, list[bytes]] | None:
        """As gRPC gives it."""
        return None if self._pem is None else {"x509_pem_cert": [self._pem]}


def test_a_certificate_that_cannot_be_read_is_not_taken_for_a_line_without_tls() -> None:
    assert certificate_of(Shows(None)) is None
    with refused(ValueError, "PEM"):
        certificate_of(Shows(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"))
