"""Requests and their replies, between the strategy's thread and the thread of the line."""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from flwr.app import Message

MOST_FORGOTTEN = 10_000  # requests whose late replies are told from replies to nothing


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that waits for its reply."""

    request: Message  # its envelope: the metadata, with the request's id
    node_id: int  # whom it was sent to
    session: int  # that the site was in
    most_bytes: int  # of the reply


class Exchange:
    """Used by both threads. A reply is taken only from the site that was asked, and once."""

    def __init__(self) -> None:
        self.news = threading.Event()  # for the strategy's thread
        self._lock = threading.Lock()
        self._asked: dict[str, Asked] = {}  # by request
        self._replies: dict[str, Message] = {}  # whole ones, by request
        self._forgotten: OrderedDict[str, Asked] = OrderedDict()
        self._problem: OSError | None = None

    def __len__(self) -> int:
        """Requests and replies that are kept."""
        return len(self._asked) + len(self._replies)

    def ask(self, request_id: str, asked: Asked) -> None:
        """A request is about to be sent."""
        with self._lock:
            self._asked[request_id] = asked

    def asked(self, request_id: str) -> Asked | None:
        """A request that waits for its reply, or for somebody to take the reply."""
        with self._lock:
            return self._asked.get(request_id)

    def answered(self, request_ids: Set[str]) -> list[str]:
        """Of these, the requests whose reply is here, in the order in which they came."""
        with self._lock:
            return [request_id for request_id in self._replies if request_id in request_ids]

    def left_alone(self, request_ids: Iterable[str], sessions: Mapping[int, int]) -> list[str]:
        """Of these, the requests without a reply whose site is not in that session now.

        `sessions`: node id -> how often it has come, of the sites that are connected.
        """
        with self._lock:
            return [
                request_id
                for request_id in request_ids
                if (asked := self._asked.get(request_id)) is not None
                and request_id not in self._replies
                and sessions.get(asked.node_id) != asked.session
            ]

    def unanswered(self) -> set[int]:
        """The nodes that were asked and have not answered."""
        with self._lock:
            return {a.node_id for i, a in self._asked.items() if i not in self._replies}

    def expects(self, request_id: str, node_id: int, session: int) -> tuple[Asked | None, bool]:
        """The request that this session may reply to, and whether the reply is still wanted."""
        with self._lock:
            wanted = request_id in self._asked and request_id not in self._replies
            asked = self._asked.get(request_id) if wanted else self._forgotten.get(request_id)
            if asked is None or (asked.node_id, asked.session) != (node_id, session):
                return None, False
            if not wanted:  # one late reply, not many
                del self._forgotten[request_id]
            return asked, wanted

    def deliver(self, request_id: str, reply: Message) -> None:
        """A reply has come, whole; one that nobody waits for any more is dropped."""
        with self._lock:
            if request_id in self._asked:
                self._replies.setdefault(request_id, reply)
        self.news.set()

    def take(self, request_id: str) -> Message | None:
        """A whole reply, once."""
        with self._lock:
            return self._replies.pop(request_id, None)

    def settle(self, request_id: str) -> None:
        """A request has been answered, and the reply was taken."""
        with self._lock:
            self._asked.pop(request_id, None)

    def forget(self, request_ids: Iterable[str]) -> list[tuple[str, Asked]]:
        """Strike requests off the list; returns those that were on it."""
        struck = []
        with self._lock:
            for request_id in request_ids:
                self._replies.pop(request_id, None)
                if (asked := self._asked.pop(request_id, None)) is not None:
                    self._forgotten[request_id] = asked
                    struck.append((request_id, asked))
            while len(self._forgotten) > MOST_FORGOTTEN:
                self._forgotten.popitem(last=False)
        return struck

    def fail(self, request_id: str, problem: OSError) -> None:
        """Our own disk does not take a reply in: the run must end, if it still waits for it."""
        with self._lock:
            if request_id in self._asked:
                self._problem = problem
        self.news.set()

    def raise_problem(self) -> None:
        """Raise it, once, in the thread that can end the run: the next one has a line again."""
        with self._lock:
            problem, self._problem = self._problem, None
        if problem is not None:
            raise problem
