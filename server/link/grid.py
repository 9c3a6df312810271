"""The Grid that the strategy talks to: messages are handed over within the process, not sent."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from flwr.app import Error, Message, RecordDict
from flwr.app.message.message import remove_content_from_message
from flwr.common.constant import (
    SUPERLINK_NODE_ID,
    ErrorCode,
)
from flwr.proto.message_pb2 import ObjectTree
from flwr.server.superlink.linkstate import LinkState
from flwr.serverapp.grid import Grid
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.run import Run

from erosion.common.errors import LinkError
from erosion.common.protocol.flower_arrays import RECEIVED_BYTES, inflate, travels_inline
from erosion.server.link.reply_tree import most_reply_bytes
from erosion.server.link.sessions import Sessions
from erosion.server.link.store import SpoolingStore

LONGEST_ROUND_SECONDS = 86_400.0  # where no timeout is given

# Codes of the errors that stand for replies: the site left or lost its connection, and it sent what
# cannot be read.
NODE_LEFT, UNREADABLE = ErrorCode.NODE_UNAVAILABLE, ErrorCode.MESSAGE_UNAVAILABLE


def received_bytes(reply: Message) -> int:
    """How large a reply came over the network; 0 for an error that stands for one."""
    num_bytes: int = reply.__dict__.get(RECEIVED_BYTES, 0)
    return num_bytes


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request that waits for its reply."""

    envelope: Message  # without content, for error replies
    session: int  # that the site was in
    most_bytes: int  # of the reply

    @property
    def node_id(self) -> int:
        return self.envelope.metadata.dst_node_id


class LinkGrid(Grid):
    """Flower's Grid on the SuperLink of this very process: messages are handed over, not sent."""

    def __init__(self, state: LinkState, store: SpoolingStore, desk: Sessions) -> None:
        self._state, self._store, self._desk = state, store, desk
        self._run: Run | None = None
        self._asked: dict[str, _Asked] = {}  # by request

    def set_run(self, run: Run) -> None:
        """Say which run the messages belong to."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run that the messages belong to."""
        if self._run is None:
            raise LinkError("The link was used before it was started.")
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """A message; Flower's older way to make one."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """Flower's ids of the sites that are connected."""
        return sorted(self._state.get_nodes(self.run.run_id))

    def sessions(self) -> dict[int, int]:
        """The sites that are connected: node id -> how often it has signed in."""
        return {node_id: self._desk.session(node_id) for node_id in self.get_node_ids()}

    def unanswered(self) -> set[int]:
        """The sites that were asked and have not answered; for other threads to look at."""
        return {asked.node_id for asked in list(self._asked.values())}

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Leave messages for sites; a site that is unknown gets none (its id is left out)."""
        pushed: list[str] = []
        with no_object_id_recompute():
            for message in messages:
                node_id = message.metadata.dst_node_id
                metadata = message.metadata.__dict__
                metadata["_run_id"] = self.run.run_id
                metadata["_src_node_id"] = SUPERLINK_NODE_ID
                metadata["_message_id"] = message.object_id
                envelope = remove_content_from_message(message)
                inline = travels_inline(message)
                if inline:
                    tree = ObjectTree(object_id=message.object_id)
                    self._store.preregister(self.run.run_id, tree)
                else:
                    tree = get_object_tree(message)
                    wanted = set(self._store.preregister(self.run.run_id, tree))
                    for object_id, part in get_all_nested_objects(message).items():
                        if object_id in wanted:
                            self._store.put(object_id, part.deflate())
                most_bytes = most_reply_bytes(self._store.num_bytes(tree))
                self._desk.allowance.grant(node_id, most_bytes)
                stored = message if inline else envelope
                if self._state.store_message_ins(stored) is None:
                    self._store.delete(tree.object_id)
                    continue
                pushed.append(tree.object_id)
                session = self._desk.session(node_id)
                self._asked[tree.object_id] = _Asked(envelope, session, most_bytes)
                self._desk.bell(node_id).set()
        return pushed

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Complete replies to `message_ids`, and an error for each site that left.

        For small ones: a large one's files are gone when it is returned.
        """
        return list(self._arrived(message_ids))

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """Ask sites, at once; then yield what comes back within `timeout` seconds, as it comes.

        Later replies are dropped. A reply is put together when its turn comes, so that of large
        ones only one at a time is in memory: let go of it before taking the next.
        """
        waiting = set(self.push_messages(messages))
        seconds = LONGEST_ROUND_SECONDS if timeout is None else timeout
        return self._arriving(waiting, time.monotonic() + seconds)

    def _arriving(self, waiting: set[str], deadline: float) -> Iterator[Message]:
        try:
            while waiting:
                left = deadline - time.monotonic()
                self._desk.news.clear()
                for reply in self._arrived(list(waiting)):
                    waiting.discard(reply.metadata.reply_to_message_id)
                    yield reply
                    del reply
                if left <= 0:
                    break
                if waiting:
                    left = deadline - time.monotonic()
                    self._desk.news.wait(max(0.0, min(left, 1.0)))  # wake for lapsed heartbeats
        finally:
            self.forget(waiting)

    def _arrived(self, message_ids: Iterable[str]) -> Iterator[Message]:
        """Complete replies, each put together when it is taken; an error for a site that left.

        A reply may read its values from files, which are there until the next one is asked for.
        """
        sessions = self.sessions()  # before the replies: a site may answer and leave
        for request_id in message_ids:
            asked = self._asked.get(request_id)
            if asked is None:
                continue
            if (reply := self._desk.delivered(request_id)) is not None:
                reply = self._from(asked, reply)
            elif (tree := self._desk.whole(request_id)) is not None:
                reply = self._inflate(asked, tree)
            elif sessions.get(asked.node_id) != asked.session:
                error = Error(ErrorCode.NODE_UNAVAILABLE, "the site left or lost its connection")
                reply = Message(error, reply_to=asked.envelope)
            else:
                continue
            try:
                yield reply
            finally:
                del reply
                self.forget([request_id])
        self._store.raise_problem()

    def wait_for_news(self, seconds: float) -> None:
        """Return when a site comes, goes or answers, or after `seconds`."""
        self._desk.news.wait(seconds)
        self._desk.news.clear()

    def forget(self, message_ids: Iterable[str]) -> None:
        """Drop requests and whatever arrived or will arrive in reply to them."""
        for request_id in list(message_ids):
            self._asked.pop(request_id, None)
            self._state.delete_messages({request_id})
            self._store.delete(request_id)
            self._desk.delivered(request_id)
            if (reply := self._desk.take(request_id)) is not None:
                self._store.delete(reply.object_id)

    def _inflate(self, asked: _Asked, tree: ObjectTree) -> Message:
        """The reply, or an error in its place if its objects make no sense."""
        names = {part.object_id for part in iterate_object_tree(tree)}
        received_bytes = self._store.num_bytes(tree)
        try:
            contents = {name: self._store.content(name) for name in names}
            reply = inflate(tree.object_id, contents, most_bytes=asked.most_bytes)
            if not isinstance(reply, Message):
                raise TypeError(f"a {type(reply).__name__} instead of a message")
        except OSError:  # our own disk's fault
            raise
        except Exception as problem:  # noqa: BLE001 - whatever a site sent, only that site pays
            reason = f"a reply that cannot be read ({type(problem).__name__})"
            reply = Message(Error(ErrorCode.MESSAGE_UNAVAILABLE, reason), reply_to=asked.envelope)
        reply.__dict__[RECEIVED_BYTES] = received_bytes
        return self._from(asked, reply)

    @staticmethod
    def _from(asked: _Asked, reply: Message) -> Message:
        """The reply as the answer to `asked`, whatever its envelope claims.

        The sender was authenticated for this request, so the request says who it is.
        """
        reply.metadata.__dict__["_reply_to_message_id"] = asked.envelope.metadata.message_id
        reply.metadata.__dict__["_src_node_id"] = asked.node_id
        return reply
