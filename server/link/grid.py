"""Flower's Grid over the line: messages go to the connected sites, and replies come back."""

import secrets
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from flwr.app import Error, Message, RecordDict

from erosion.common.line.run_news import RunNews
from erosion.common.protocol.admission_terms import Reason
from erosion.common.protocol.error_codes import MESSAGE_UNAVAILABLE, NODE_UNAVAILABLE
from erosion.common.protocol.flower_messages import (
    ReplyMessage,
    RequestMessage,
    most_reply_bytes,
)
from erosion.common.support.process import RunningTime
from erosion.server.link.exchange import Asked
from erosion.server.link.message_grid import MessageGrid
from erosion.server.link.request import Content, Request
from erosion.server.link.sessions import Sessions
from erosion.server.link.site_session import SiteSession

LONGEST_ROUND_SECONDS = 86_400.0  # where no timeout is given
# What a reply may bring to a request of somebody's own app, which does not say how much it can:
SPARE_BYTES = 64 * 2**20  # however small the request was
TIMES_REQUEST = 16  # and so often the request beside it

# Codes of the errors that stand for replies: the site left or lost its connection, and it sent what
# cannot be read.
NODE_LEFT, UNREADABLE = NODE_UNAVAILABLE, MESSAGE_UNAVAILABLE
LEFT = "the site left or lost its connection"


class LinkGrid(MessageGrid):
    """Used by the strategy's thread; the line's own thread does the sending."""

    def __init__(self, sessions: Sessions, clock: RunningTime) -> None:
        """`clock`: by which deadlines pass."""
        self._sessions, self._exchange = sessions, sessions.exchange
        self.clock = clock
        self._run: Any = None
        self._prefix, self._num_requests = secrets.token_hex(8), 0  # of this coordinator's requests
        self.run_news: RunNews | None = None  # sent along with every request; None: nothing is

    def set_run(self, run: Any) -> None:
        """Flower's description of a run, which means nothing here; kept for `run`."""
        self._run = run

    @property
    def run(self) -> Any:
        """What `set_run` was given."""
        return self._run

    def get_node_ids(self) -> list[int]:
        """The ids of the sites that are connected."""
        return sorted(self._sessions.numbers())

    def sessions(self) -> dict[int, int]:
        """The sites that are connected: node id -> how often it has signed in."""
        return self._sessions.numbers()

    def unanswered(self) -> set[int]:
        """The sites that were asked and have not answered; for other threads to look at."""
        return self._exchange.unanswered()

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send messages; a site that is not connected gets none (its id is left out)."""
        pushed: list[str] = []
        calls: list[tuple[int, int, Callable[[SiteSession], None]]] = []
        last: tuple[RecordDict, Content] | None = None
        numbers = self._sessions.numbers()
        for message in messages:
            node_id = message.metadata.dst_node_id
            number = numbers.get(node_id)
            if number is None:
                continue
            self._num_requests += 1
            request_id = f"{self._prefix}-{self._num_requests}"
            most = most_reply_bytes(message)
            # Our own requests are alike for a whole row of sites; an app may change what it sent.
            if most is None or last is None or last[0] is not message.content:
                last = message.content, Content.of(message)
            request = Request.of(request_id, message, last[1], self.run_news)
            if most is None:
                most = SPARE_BYTES + TIMES_REQUEST * request.num_bytes
            self._exchange.ask(
                request_id, Asked(_envelope(message, request_id), node_id, number, most)
            )
            calls.append((node_id, number, partial(_ask, request=request)))
            pushed.append(request_id)
        self._sessions.call_all(calls)
        return pushed

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Complete replies to `message_ids`, and an error for each site that left."""
        return list(self._arrived(message_ids))

    def send_and_receive(
        self,
        messages: Iterable[Message],
        *,
        timeout: float | None = None,
    ) -> Iterator[Message]:
        """Ask sites, at once; then yield what comes back within `timeout` seconds, as it comes.

        Later replies are dropped. Let go of a reply before taking the next, so that its arrays do
        not stay in memory.
        """
        waiting = set(self.push_messages(messages))
        seconds = LONGEST_ROUND_SECONDS if timeout is None else timeout
        return self._arriving(waiting, self.clock.now() + seconds)

    def wait_for_news(self, seconds: float) -> None:
        """Return when a site comes, goes or answers, or after `seconds`."""
        self._exchange.news.wait(seconds)
        self._exchange.news.clear()

    def probe(self, node_ids: Iterable[int]) -> None:
        """Ask sites whether they live; see `hears`."""
        for node_id in node_ids:
            if (session := self._sessions.live(node_id)) is not None:
                self._sessions.call(node_id, session.number, SiteSession.probe)

    def hears(self, node_id: int) -> bool:
        """Was something heard of the site since it was probed, if it was?"""
        session = self._sessions.live(node_id)
        return session is not None and session.is_heard

    def forget(self, message_ids: Iterable[str], *, is_told: bool = True) -> None:
        """Drop requests and whatever arrived or will arrive in reply to them.

        `is_told`: the sites are, and do not look at a request any more that waits there.
        """
        for request_id, asked in self._exchange.forget(message_ids):
            if is_told:
                drop = partial(_drop, request_id=request_id)
                self._sessions.call(asked.node_id, asked.session, drop)

    def _arriving(self, waiting: set[str], deadline: float) -> Iterator[Message]:
        try:
            while waiting:
                left = deadline - self.clock.now()
                self._exchange.news.clear()
                for reply in self._arrived(list(waiting)):
                    waiting.discard(reply.metadata.reply_to_message_id)
                    yield reply
                    del reply
                if left <= 0:
                    break
                if waiting:
                    left = deadline - self.clock.now()
                    self._exchange.news.wait(max(0.0, min(left, 1.0)))
        finally:
            self.forget(waiting)

    def _arrived(self, message_ids: Iterable[str]) -> Iterator[Message]:
        """Complete replies; an error for a site that left."""
        wanted = set(message_ids)
        numbers = self._sessions.numbers()  # before the replies: a site may answer and leave
        for request_id in self._exchange.answered(wanted):
            reply = self._exchange.take(request_id)
            self._exchange.settle(request_id)
            if reply is not None:
                yield reply
            del reply
        for request_id in self._exchange.left_alone(wanted, numbers):
            asked = self._exchange.asked(request_id)
            self._exchange.settle(request_id)
            if asked is not None:
                yield ReplyMessage(self._why_gone(asked), asked.request)
        self._exchange.raise_problem()

    def _why_gone(self, asked: Asked) -> Error:
        ending = self._sessions.ending(asked.node_id)
        if ending is None or ending.reason is Reason.SILENT:
            return Error(NODE_UNAVAILABLE, LEFT)
        code = MESSAGE_UNAVAILABLE if ending.reason is Reason.ABUSE else NODE_UNAVAILABLE
        return Error(code, f"the site's connection was ended: {ending.text}")


def _envelope(message: Message, request_id: str) -> Message:
    """The request without its content, which may be large, and with its id."""
    asked = message.metadata
    return RequestMessage(
        RecordDict(),
        request_id,
        asked.dst_node_id,
        asked.message_type,
        group_id=asked.group_id,
        ttl=asked.ttl,
    )


def _ask(session: SiteSession, *, request: Request) -> None:
    session.ask(request)


def _drop(session: SiteSession, *, request_id: str) -> None:
    session.drop(request_id)
