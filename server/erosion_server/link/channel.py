"""Channels: each study's own way to the sites, a Flower Grid over the link that all share.

A channel has its own mailbox, spool folder and denials, so that studies at one coordinator cannot
touch each other's replies or files.
"""

import json
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from itertools import count
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from flwr.app import Error, Message, RecordDict
from flwr.serverapp import Grid

from erosion_common.errors import LinkError
from erosion_common.protocol.envelope import describe
from erosion_common.protocol.flower import (
    MESSAGE_UNAVAILABLE,
    NODE_UNAVAILABLE,
    ReplyMessage,
    RequestMessage,
    most_head_bytes,
    most_reply_bytes,
)
from erosion_common.protocol.frames import LARGEST_HEAD_BYTES, Kind, Reason, RunNews, json_frame
from erosion_common.support.process import RunningTime
from erosion_server.enrolment.admission import Denial
from erosion_server.link.spool import Spool

if TYPE_CHECKING:
    from erosion_server.link.service import Sessions
    from erosion_server.link.site_session import SiteSession

LONGEST_ROUND_SECONDS = 86_400.0  # where no timeout is given
# Limit of a reply to a request of an app, which does not say how large an honest one is:
SPARE_BYTES = 64 * 2**20  # however small the request was,
TIMES_REQUEST = 16  # and as many times the request in addition
MOST_FORGOTTEN = 10_000  # requests of which a late reply is tolerated

NODE_LEFT, UNREADABLE = NODE_UNAVAILABLE, MESSAGE_UNAVAILABLE  # codes of errors in place of replies
LEFT = "the site left or lost its connection"


class Mailbox:
    """What one channel waits for."""

    def __init__(self, spool: Spool | None = None) -> None:
        """`spool`: takes large replies in; None: memory does."""
        self.spool = spool
        self.news = threading.Event()  # a site connected, left or answered
        self.problem: BaseException | None = None  # ends the study at its next look

    def fail(self, problem: BaseException) -> None:
        """End the study that waits here."""
        self.problem = problem
        self.news.set()


@dataclass(frozen=True, slots=True)
class Pending:
    """A request that waits for its reply."""

    envelope: Message  # the request without its content
    node_id: int  # the site that was asked, and in which of its sessions
    session: int
    most_bytes: int  # of the reply
    mailbox: Mailbox


class OpenRequests:
    """The requests of all channels. A reply counts only from the site that was asked, and once."""

    def __init__(self) -> None:
        self._prefix, self._numbers = secrets.token_hex(8), count(1)
        self._lock = threading.Lock()
        self._mailboxes: set[Mailbox] = set()
        self._pending: dict[str, Pending] = {}  # by request
        self._replies: dict[str, Message] = {}  # whole ones, by request
        self._forgotten: OrderedDict[str, Pending] = OrderedDict()

    def new_id(self) -> str:
        """Return an id that no other request of any coordinator has."""
        return f"{self._prefix}-{next(self._numbers)}"

    def __len__(self) -> int:
        return len(self._pending) + len(self._replies)

    def open(self, mailbox: Mailbox) -> Mailbox:
        """Deliver to `mailbox`, too."""
        with self._lock:
            self._mailboxes.add(mailbox)
        return mailbox

    def close(self, mailbox: Mailbox) -> None:
        """Forget all requests of `mailbox`."""
        with self._lock:
            self._mailboxes.discard(mailbox)
            requests = [i for i, pending in self._pending.items() if pending.mailbox is mailbox]
        self.forget(requests)

    def mailboxes(self) -> list[Mailbox]:
        """Return those of the open channels."""
        with self._lock:
            return list(self._mailboxes)

    def wake(self) -> None:
        """Let every study look who is here."""
        for mailbox in self.mailboxes():
            mailbox.news.set()

    def ask(self, request_id: str, pending: Pending) -> None:
        """Expect a reply to a request that is about to be sent."""
        with self._lock:
            self._pending[request_id] = pending

    def pending(self, request_id: str) -> Pending | None:
        """Return the request if nobody has taken its reply yet."""
        with self._lock:
            return self._pending.get(request_id)

    def answered(self, request_ids: Set[str]) -> list[str]:
        """Return those of `request_ids` with a reply, in the order of arrival."""
        with self._lock:
            return [request_id for request_id in self._replies if request_id in request_ids]

    def orphans(
        self, request_ids: Iterable[str], sessions: Mapping[int, int]
    ) -> list[tuple[str, Pending]]:
        """Return unanswered requests of sessions that are not among `sessions` (by node)."""
        with self._lock:
            return [
                (request_id, pending)
                for request_id in request_ids
                if (pending := self._pending.get(request_id)) is not None
                and request_id not in self._replies
                and sessions.get(pending.node_id) != pending.session
            ]

    def unanswered(self, mailbox: Mailbox) -> set[int]:
        """Return the nodes that have not answered `mailbox`."""
        with self._lock:
            return {
                p.node_id
                for i, p in self._pending.items()
                if p.mailbox is mailbox and i not in self._replies
            }

    def expects(self, request_id: str, node_id: int, session: int) -> tuple[Pending | None, bool]:
        """Return the request that this session may reply to, and if the reply is still wanted."""
        with self._lock:
            wanted = request_id in self._pending and request_id not in self._replies
            pending = self._pending.get(request_id) if wanted else self._forgotten.get(request_id)
            if pending is None or (pending.node_id, pending.session) != (node_id, session):
                return None, False
            if not wanted:  # one late reply, not many
                del self._forgotten[request_id]
            return pending, wanted

    def deliver(self, request_id: str, reply: Message) -> None:
        """Hand over a whole reply; drop it where nobody waits for it any more."""
        with self._lock:
            if (pending := self._pending.get(request_id)) is None:
                return
            self._replies.setdefault(request_id, reply)
        pending.mailbox.news.set()

    def take(self, request_id: str) -> Message | None:
        """Return a whole reply, once, and settle its request."""
        with self._lock:
            self._pending.pop(request_id, None)
            return self._replies.pop(request_id, None)

    def forget(self, request_ids: Iterable[str]) -> list[tuple[str, Pending]]:
        """Strike requests off the list; return those that were on it."""
        struck = []
        with self._lock:
            for request_id in request_ids:
                self._replies.pop(request_id, None)
                if (pending := self._pending.pop(request_id, None)) is not None:
                    self._forgotten[request_id] = pending
                    struck.append((request_id, pending))
            while len(self._forgotten) > MOST_FORGOTTEN:
                self._forgotten.popitem(last=False)
        return struck

    def fail(self, request_id: str, problem: OSError) -> None:
        """End the study that waits for a reply which our own disk does not take in."""
        if (pending := self.pending(request_id)) is not None:
            pending.mailbox.fail(problem)


class Content(NamedTuple):
    """A message's content, ready to be sent to one site or, made once, to hundreds."""

    json: bytes  # describes the arrays, and holds everything else
    buffers: list[memoryview]

    @staticmethod
    def of(message: Message) -> "Content":
        """Return that of a Flower message."""
        records, buffers = describe(message.content)
        return Content(json.dumps(records, separators=(",", ":")).encode(), buffers)


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A message to a site, ready to be sent."""

    request_id: str
    head: bytes  # a frame
    buffers: list[memoryview]
    most_head_bytes: int = LARGEST_HEAD_BYTES  # of the reply
    spool: Spool | None = None  # given: a large request waits for its turn

    @property
    def num_bytes(self) -> int:
        """Of its arrays."""
        return sum(buffer.nbytes for buffer in self.buffers)

    @staticmethod
    def of(
        request_id: str,
        message: Message,
        content: Content,
        run: RunNews | None = None,
        spool: Spool | None = None,
    ) -> "Request":
        """Make it of a Flower message with this `content`. `run`: of an app, if it is one's.

        Raises LinkError where no site would take it in.
        """
        metadata = message.metadata
        head = {
            "id": request_id,
            "type": metadata.message_type,
            "group": metadata.group_id,
            "ttl": metadata.ttl,
            **({} if run is None else {"run": run.as_json(metadata.dst_node_id)}),
        }
        before = json_frame(Kind.MESSAGE, head).removesuffix(b"}")
        frame = b"".join((before, b',"records":', content.json, b"}"))
        if len(frame) - 1 > LARGEST_HEAD_BYTES:  # without the byte that says its kind
            raise LinkError(
                f"A {metadata.message_type} request has {len(frame) - 1:,} bytes besides its"
                f" arrays; sites accept {LARGEST_HEAD_BYTES:,}",
                remedy="Send less in its metrics and configs, or send that as arrays.",
            )
        return Request(request_id, frame, content.buffers, most_head_bytes(message), spool)


class MessageGrid(Grid):
    """What all grids here have in common."""

    _run: Any = None

    def set_run(self, run: Any) -> None:
        """Keep Flower's description of a run, which means nothing here."""
        self._run = run

    @property
    def run(self) -> Any:
        """Return what `set_run` was given."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Make a message in Flower's older way."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)


class LinkGrid(MessageGrid):
    """One channel, for its study's thread; the link's own thread does the sending."""

    def __init__(
        self, sessions: "Sessions", clock: RunningTime, spool: Spool | None = None
    ) -> None:
        """`clock`: by which deadlines pass. `spool`: for large replies and updates, made now."""
        if spool is not None:
            spool.make()
        self._sessions, self._exchange = sessions, sessions.exchange
        self._mailbox = self._exchange.open(Mailbox(spool))
        self._num_denials = sessions.keeper.num_news
        self.clock = clock
        self.run_news: RunNews | None = None  # sent along with every request; None: nothing is

    def close(self) -> None:
        """Drop what still arrives, and remove the spool folder."""
        self._exchange.close(self._mailbox)
        if self._mailbox.spool is not None:
            self._mailbox.spool.remove()

    @property
    def updates(self) -> Path | None:
        """Return the folder for a round's updates; None: they stay in memory."""
        return None if self._mailbox.spool is None else self._mailbox.spool.updates

    def get_node_ids(self) -> list[int]:
        """Return the ids of the connected sites."""
        return sorted(self._sessions.numbers())

    def visits(self) -> dict[int, tuple[int, int]]:
        """Return the connected sites: node id -> number of the session, and of decisions in it."""
        return self._sessions.visits()

    def unanswered(self) -> set[int]:
        """Return the sites that owe this channel an answer; for any thread."""
        return self._exchange.unanswered(self._mailbox)

    def denials(self) -> list[Denial]:
        """Return the sites that were not let in since the last call, or since this was opened."""
        denied, self._num_denials = self._sessions.keeper.news(self._num_denials)
        return denied

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send messages; a site that is not connected gets none (its id is left out)."""
        pushed: list[str] = []
        calls: list[tuple[int, int, Callable[[SiteSession], None]]] = []
        last: tuple[RecordDict, Content] | None = None
        numbers, mailbox = self._sessions.numbers(), self._mailbox
        for message in messages:
            node_id = message.metadata.dst_node_id
            number = numbers.get(node_id)
            if number is None:
                continue
            request_id = self._exchange.new_id()
            most = most_reply_bytes(message)
            # Our own requests are alike for many sites in a row; an app may change what it sent.
            if most is None or last is None or last[0] is not message.content:
                last = message.content, Content.of(message)
            request = Request.of(request_id, message, last[1], self.run_news, mailbox.spool)
            if most is None:
                most = SPARE_BYTES + TIMES_REQUEST * request.num_bytes
            asked = message.metadata
            # Without the content, which may be large:
            envelope = RequestMessage(
                RecordDict(),
                request_id,
                node_id,
                asked.message_type,
                group_id=asked.group_id,
                ttl=asked.ttl,
            )
            self._exchange.ask(request_id, Pending(envelope, node_id, number, most, mailbox))
            calls.append((node_id, number, methodcaller("ask", request)))
            pushed.append(request_id)
        self._sessions.call_all(calls)
        return pushed

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return complete replies to `message_ids`, and an error for each site that left."""
        return list(self._arrived(message_ids))

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """Ask sites at once; then yield what comes back within `timeout` seconds, as it comes.

        Later replies are dropped. Delete a reply before taking the next: its arrays fill memory.
        """
        waiting = set(self.push_messages(messages))
        seconds = LONGEST_ROUND_SECONDS if timeout is None else timeout
        return self._arriving(waiting, self.clock.now() + seconds)

    def wait_for_news(self, seconds: float) -> None:
        """Return when a site connects, leaves or answers, or after `seconds`."""
        self._mailbox.news.wait(seconds)
        self._mailbox.news.clear()

    def probe(self, node_ids: Iterable[int]) -> None:
        """Ask sites for a sign of life; see `hears`."""
        for node_id in node_ids:
            if (session := self._sessions.live(node_id)) is not None:
                self._sessions.call(node_id, session.number, lambda s: s.probe())

    def hears(self, node_id: int) -> bool:
        """Return False while a site that was probed has given no sign of life."""
        session = self._sessions.live(node_id)
        return session is not None and session.is_heard

    def forget(self, message_ids: Iterable[str], *, is_told: bool = True) -> None:
        """Drop requests and their replies; `is_told`: sites skip those that still wait."""
        for request_id, pending in self._exchange.forget(message_ids):
            if is_told:
                drop = methodcaller("drop", request_id)
                self._sessions.call(pending.node_id, pending.session, drop)

    def _arriving(self, waiting: set[str], deadline: float) -> Iterator[Message]:
        try:
            while waiting:
                is_over = self.clock.now() >= deadline
                self._mailbox.news.clear()
                for reply in self._arrived(list(waiting)):
                    waiting.discard(reply.metadata.reply_to_message_id)
                    yield reply
                    del reply
                if is_over:
                    break
                if waiting:
                    left = deadline - self.clock.now()
                    self._mailbox.news.wait(max(0.0, min(left, 1.0)))
        finally:
            self.forget(waiting)

    def _arrived(self, message_ids: Iterable[str]) -> Iterator[Message]:
        wanted = set(message_ids)
        numbers = self._sessions.numbers()  # before the replies: a site may answer and leave
        for request_id in self._exchange.answered(wanted):
            if (reply := self._exchange.take(request_id)) is not None:
                yield reply
            del reply
        for request_id, pending in self._exchange.orphans(wanted, numbers):
            self._exchange.take(request_id)
            yield ReplyMessage(self._why_gone(pending), pending.envelope)
        problem, self._mailbox.problem = self._mailbox.problem, None
        if problem is not None:
            raise problem

    def _why_gone(self, pending: Pending) -> Error:
        ending = self._sessions.ending(pending.node_id)
        if ending is None or ending.reason is Reason.SILENT:
            return Error(NODE_UNAVAILABLE, LEFT)
        code = MESSAGE_UNAVAILABLE if ending.reason is Reason.ABUSE else NODE_UNAVAILABLE
        return Error(code, f"the site's connection was ended: {ending.text}")
