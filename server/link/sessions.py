"""Shared notes of the gRPC threads and the strategy's thread."""

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from flwr.app import Message
from flwr.proto.message_pb2 import ObjectTree
from flwr.server.superlink.linkstate import LinkState

from erosion.server.link.reply_tree import Allowance

# Without a call, after which a site that signs in anew is let in; a heartbeat comes every 8 s.
SILENT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class _Announced:
    """A reply that comes object by object."""

    tree: ObjectTree
    missing: set[str]  # objects that have not come yet


@dataclass
class Sessions:
    """Where the gRPC threads and the strategy's thread leave each other notes."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    news: threading.Event = field(default_factory=threading.Event)  # for the strategy's thread
    allowance: Allowance = field(default_factory=Allowance)
    _bells: dict[int, threading.Event] = field(default_factory=dict)
    _announced: dict[str, _Announced] = field(default_factory=dict)  # by request
    _inline: dict[str, Message] = field(default_factory=dict)  # request -> its reply, if small
    _sessions: dict[int, int] = field(default_factory=dict)
    _standing: dict[int, int] = field(default_factory=dict)  # calls under way, by node
    _last_call: dict[int, float] = field(default_factory=dict)  # when one ended

    def session(self, node_id: int) -> int:
        """How often this node has signed in: a site that came back has forgotten its requests."""
        with self.lock:
            return self._sessions.get(node_id, 0)

    def num_sites(self) -> int:
        """How many nodes have signed in at some time."""
        with self.lock:
            return len(self._sessions)

    def begin_session(self, node_id: int) -> None:
        """The node signed in, or its session was ended."""
        with self.lock:
            self._sessions[node_id] = self._sessions.get(node_id, 0) + 1
            self._last_call[node_id] = time.monotonic()

    def end_session(self, node_id: int, state: LinkState) -> None:
        """Part with a node, whose waiting call is answered so that it asks again and is told."""
        if state.deactivate_node(node_id):
            self.begin_session(node_id)
            self.bell(node_id).set()
            self.news.set()

    @contextlib.contextmanager
    def calling(self, node_id: int) -> Iterator[None]:
        """For as long as a call of this node is under way."""
        with self.lock:
            self._standing[node_id] = self._standing.get(node_id, 0) + 1
        try:
            yield
        finally:
            with self.lock:
                self._standing[node_id] -= 1
                self._last_call[node_id] = time.monotonic()

    def is_silent(self, node_id: int) -> bool:
        """Whether nothing is heard of a node; one that lives has a call standing, or calls soon."""
        with self.lock:
            silent = time.monotonic() - self._last_call.get(node_id, 0.0)
            return not self._standing.get(node_id) and silent > SILENT_SECONDS

    def bell(self, node_id: int) -> threading.Event:
        """Rings when there is a message for this node."""
        with self.lock:
            return self._bells.setdefault(node_id, threading.Event())

    def announce(self, request_id: str, reply: ObjectTree, missing: Iterable[str]) -> None:
        """A reply has begun to arrive; these of its objects are to come."""
        with self.lock:
            self._announced[request_id] = _Announced(reply, set(missing))

    def object_came(self, object_id: str) -> bool:
        """Whether it made a reply whole. Replies may share an object."""
        with self.lock:
            waited = [r.missing for r in self._announced.values() if object_id in r.missing]
            for missing in waited:
                missing.discard(object_id)
        return not all(waited)

    def deliver(self, request_id: str, reply: Message) -> None:
        """A reply has come, whole."""
        with self.lock:
            self._inline[request_id] = reply

    def delivered(self, request_id: str) -> Message | None:
        """A whole reply, once."""
        with self.lock:
            return self._inline.pop(request_id, None)

    def whole(self, request_id: str) -> ObjectTree | None:
        """The objects of a reply that has come object by object, once the last is there."""
        with self.lock:
            reply = self._announced.get(request_id)
            return reply.tree if reply is not None and not reply.missing else None

    def take(self, request_id: str) -> ObjectTree | None:
        """Strike a reply off the list."""
        with self.lock:
            reply = self._announced.pop(request_id, None)
            return None if reply is None else reply.tree
