"""What the coordinator makes of sites that come and go, without a port."""

from collections.abc import Iterable
from typing import Any

import pytest
from flwr.app import Error, Message, RecordDict

from erosion_common.protocol import wire
from erosion_common.protocol.flower import NODE_UNAVAILABLE, NoAnswer, ReplyMessage
from erosion_common.protocol.messages import DescribeReply, TrainRequest
from erosion_common.protocol.wire import DESCRIBE, NOTICE, TRAIN
from erosion_common.rounds import bounds
from erosion_common.rounds.arm import initial_state
from erosion_common.rounds.channel import Away, Declined, Denied, Introduced, Left, News
from erosion_common.rounds.records import Absence
from erosion_common.study.study import Study
from erosion_common.support.process import RunningTime
from erosion_server.coordination.network import NetworkChannel
from erosion_server.enrolment.admission import RejectionLog
from erosion_server.link.channel import Content, LinkGrid, OpenRequests, Request
from erosion_server.link.service import Sessions
from erosion_server.link.site_session import Peer, SiteSession
from erosion_server.link.spool import TransferThrottle
from tests.support.small_study import make_study

NODE = 7


class Keys:
    """A `NodeAuthorizer` with one hospital, whose key may lose its worth."""

    def __init__(self, hospital: str) -> None:
        self.hospital: str | None = hospital  # None: the key is not let in
        self.why: str | None = None
        self.is_renewable = True

    def hospital_of(self, node_id: int) -> str | None:
        return self.hospital

    def why_not(self, hospital: str) -> str | None:
        return self.why

    def may_renew(self, hospital: str) -> bool:
        return self.is_renewable

    def evict(self, node_id: int) -> None: ...


class Port:
    """What there is of a line before anything is sent."""

    def __init__(
        self, study: Study, keys: "Keys | None" = None, *, others_stay: bool = False
    ) -> None:
        self.exchange, self.seconds = OpenRequests(), 0.0
        self.sessions = Sessions(self.exchange, RejectionLog(None))
        clock = RunningTime()
        clock.now = lambda: self.seconds  # type: ignore[method-assign]
        grid = LinkGrid(self.sessions, clock)
        authorizer: Any = keys
        self.transport = NetworkChannel(study, grid, authorizer, others_stay=others_stay)

    def connect(self, name: str) -> SiteSession:
        """A site comes and introduces itself."""
        session = self.begin()
        self.introduce(name)
        return session

    def begin(self) -> SiteSession:
        """A site comes."""
        session = self.sessions.begin(
            Peer(NODE, None, None, ""),
            lambda peer, n: SiteSession(peer, n, self.exchange, TransferThrottle(lambda: 1)),
        )
        assert not list(self.transport.news())
        return session

    def introduce(self, name: str) -> None:
        """It answers."""
        described = DescribeReply(hospital=name, num_samples=10, software="test")
        self.answer(wire.encode_header(described))

    def answer(self, content: RecordDict | Error) -> None:
        """It answers with this."""
        (request_id,) = list(self.exchange._pending)
        pending = self.exchange.pending(request_id)
        assert pending is not None
        self.exchange.deliver(request_id, ReplyMessage(content, pending.envelope))


def test_a_site_that_leaves_just_before_it_is_asked_has_left_and_is_not_late() -> None:
    study = make_study()
    port = Port(study)
    session = port.connect("a")
    (connection,) = [
        event.connection for event in port.transport.news() if isinstance(event, Introduced)
    ]
    port.sessions.close(session)
    params = initial_state(study, "fedavg").params
    request = TrainRequest(study, "fedavg", 1, params, None)
    (reply,) = port.transport.ask({connection: request}, 60.0)
    assert reply.left
    assert reply.content == Absence("the site left or lost its connection")


def test_every_request_of_a_study_bounds_the_head_of_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    study, sent = make_study(), []
    push = LinkGrid.push_messages

    def pushed(grid: LinkGrid, messages: Iterable[Message]) -> list[str]:
        kept = list(messages)
        sent.extend(kept)
        return push(grid, kept)

    monkeypatch.setattr(LinkGrid, "push_messages", pushed)
    port = Port(study)
    port.connect("a")
    (connection,) = [
        event.connection for event in port.transport.news() if isinstance(event, Introduced)
    ]
    request = TrainRequest(study, "fedavg", 1, initial_state(study, "fedavg").params, None)
    sent.extend(port.transport.messages({connection: request}, 60.0))
    port.transport.turn_away(connection, "it is not wanted")
    assert [message.metadata.message_type for message in sent] == [DESCRIBE, TRAIN, NOTICE]
    bound = bounds.most_head_bytes(study)
    assert {Request.of("r", each, Content(b"{}", [])).most_head_bytes for each in sent} == {bound}


@pytest.mark.parametrize(
    ("why", "is_renewable", "told"),
    [
        (None, True, [Away("a", "its key was replaced"), Left(1)]),
        ("its key expired", True, [Away("a", "its key expired"), Left(1)]),
        ("its key was revoked", False, [Left(1, expelled="its key was revoked")]),
    ],
)
def test_only_a_hospital_whose_key_was_revoked_is_out_for_good(
    why: str | None, is_renewable: bool, told: list[News]
) -> None:
    keys = Keys("a")
    port = Port(make_study(), keys)
    port.connect("a")
    assert [type(event) for event in port.transport.news()] == [Introduced]
    keys.hospital, keys.why, keys.is_renewable = None, why, is_renewable
    assert list(port.transport.news()) == told


@pytest.mark.parametrize(
    ("keys", "told"), [(Keys("a"), Away), (Keys("of another study"), Denied), (None, Denied)]
)
def test_a_site_that_lives_and_does_not_introduce_itself_is_told_of_once_and_may_do_so_later(
    keys: Keys | None, told: type[News]
) -> None:
    port = Port(make_study(federation={"join_deadline_seconds": 30.0}), keys)
    port.begin()
    port.seconds = 29.0
    assert not list(port.transport.news())
    port.seconds = 30.0
    (event,) = port.transport.news()
    assert isinstance(event, told)
    assert isinstance(event, Away | Denied)
    assert event.reason.startswith("it did not describe its patients within 30 s")
    assert not isinstance(event, Away) or event.connection == 1  # whose end ends this
    assert not list(port.transport.news())
    if told is Away or keys is None:
        port.introduce("a")
        assert [type(event) for event in port.transport.news()] == [Introduced]


CALLED_B2 = NoAnswer("Refusal", "b2", "it is not among the study's hospitals (a, b)").encode()
NOT_NOW = NoAnswer("Refusal", "b", "not now").encode()
NO_B2 = "the study has no hospital 'b2'; check `name` in the site file"


@pytest.mark.parametrize(
    ("keys", "others_stay", "said", "told"),
    [
        (None, False, NOT_NOW, [Declined(1, "b", "not now")]),
        (None, False, CALLED_B2, [Denied("b2", None, NO_B2)]),
        (None, True, CALLED_B2, []),
        (
            None,
            False,
            Error(2, "\x1b[2J: no"),
            [Denied("node 7", None, "\N{REPLACEMENT CHARACTER}[2J: no")],
        ),
        (Keys("b"), False, NOT_NOW, [Declined(1, "b", "not now")]),
        (
            Keys("b"),
            True,
            CALLED_B2,
            [Away("b", "its site file calls it 'b2'; `name` there must be 'b'", 1)],
        ),
        (
            Keys("b"),
            False,
            NoAnswer("Refusal", "a", "not now").encode(),
            [Away("b", "its site file calls it 'a'; `name` there must be 'b'", 1)],
        ),
        (Keys("b"), False, Error(2, "no idea"), [Away("b", "no idea", 1)]),
        (Keys("b2"), False, CALLED_B2, [Denied("b2", None, "the study has no hospital 'b2'")]),
    ],
)
def test_a_site_that_goes_by_a_name_which_the_study_does_not_have_for_it_is_told_of(
    keys: Keys | None, others_stay: bool, said: Error, told: list[News]
) -> None:
    """Else its hospital would be waited for, and nobody would know why."""
    port = Port(make_study(hospitals=["a", "b"]), keys, others_stay=others_stay)
    port.begin()
    port.answer(said)
    assert list(port.transport.news()) == told


def test_a_site_that_leaves_before_it_describes_itself_is_not_taken_for_one_that_declines() -> None:
    port = Port(make_study())
    port.begin()
    port.answer(Error(NODE_UNAVAILABLE, "the site left or lost its connection"))
    assert list(port.transport.news()) == []
