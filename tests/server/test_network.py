"""What the coordinator makes of sites that come and go, without a port."""

from collections.abc import Iterable

import pytest
from flwr.app import Message

from erosion.common.protocol import wire
from erosion.common.protocol.flower_messages import ReplyMessage
from erosion.common.protocol.messages import DescribeReply, TrainRequest
from erosion.common.protocol.wire import DESCRIBE, NOTICE, TRAIN
from erosion.common.rounds import head_bounds
from erosion.common.rounds.records import Absence
from erosion.common.rounds.study_run import first_state
from erosion.common.rounds.transport import Introduced
from erosion.common.study.study import Study
from erosion.server.coordination.network import NetworkTransport
from erosion.server.enrolment.rejections import RejectionLog
from erosion.server.link.exchange import Exchange
from erosion.server.link.grid import LinkGrid
from erosion.server.link.request import Content, Request
from erosion.server.link.sessions import Sessions
from erosion.server.link.site_session import Peer, SiteSession
from tests.support.small_study import make_study

NODE = 7


class Port:
    """What there is of a line before anything is sent."""

    def __init__(self, study: Study) -> None:
        self.exchange = Exchange()
        self.sessions = Sessions(self.exchange, RejectionLog(None))
        self.transport = NetworkTransport(study, LinkGrid(self.sessions))

    def connect(self, name: str) -> SiteSession:
        """A site comes and introduces itself."""
        session = self.sessions.begin(
            Peer(NODE, None, None, ""), lambda peer, n: SiteSession(peer, n, self.exchange)
        )
        assert not list(self.transport.news())
        (request_id,) = list(self.exchange._asked)
        described = DescribeReply(hospital=name, num_samples=10, software="test")
        asked = self.exchange.asked(request_id)
        assert asked is not None
        content = wire.encode_describe_reply(described)
        reply: Message = ReplyMessage(content, asked.request)
        self.exchange.deliver(request_id, reply)
        return session


def test_a_site_that_leaves_just_before_it_is_asked_has_left_and_is_not_late() -> None:
    study = make_study()
    port = Port(study)
    session = port.connect("a")
    (connection,) = [
        event.connection for event in port.transport.news() if isinstance(event, Introduced)
    ]
    port.sessions.close(session)
    params = first_state(study, "fedavg").params
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
    request = TrainRequest(study, "fedavg", 1, first_state(study, "fedavg").params, None)
    sent.extend(port.transport.messages({connection: request}, 60.0))
    port.transport.turn_away(connection, "it is not wanted")
    assert [message.metadata.message_type for message in sent] == [DESCRIBE, TRAIN, NOTICE]
    bound = head_bounds.most_head_bytes(study)
    assert {Request.of("r", each, Content(b"{}", [])).most_head_bytes for each in sent} == {bound}
