"""The sites that are connected, and how often each has come."""

import asyncio
import hashlib
import secrets
import threading
from collections.abc import Callable, Sequence

from erosion.server.enrolment.authorizer import KeptOut
from erosion.server.enrolment.rejections import RejectionLog
from erosion.server.link.channel import Exchange
from erosion.server.link.site_session import Ending, Peer, SiteSession

MOST_KNOWN = 100_000  # nodes that have come at some time


class Sessions:
    """The line's event loop changes it, the strategy's thread looks at it."""

    def __init__(self, exchange: Exchange, keeper: RejectionLog) -> None:
        self.exchange, self.keeper = exchange, keeper
        self._lock = threading.Lock()
        self._live: dict[int, SiteSession] = {}  # by node
        self._known: dict[int, Peer] = {}  # every node that has come, as it came last
        self._numbers: dict[int, int] = {}  # how often it has come
        self._endings: dict[int, Ending] = {}  # of its last session, where we ended it
        self._loop: asyncio.AbstractEventLoop | None = None

    def run_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """The line's loop has started."""
        self._loop = loop

    @staticmethod
    def node_id(hospital: str | None) -> int:
        """The same for the same hospital; a new one for a site without a certificate."""
        if hospital is None:
            return secrets.randbits(62) + 2
        return int.from_bytes(hashlib.sha256(hospital.encode()).digest()[:8]) // 4 + 2

    def live(self, node_id: int) -> SiteSession | None:
        """The node's session, if it is connected."""
        with self._lock:
            return self._live.get(node_id)

    def all_live(self) -> list[SiteSession]:
        """Every session."""
        with self._lock:
            return list(self._live.values())

    def begin(self, peer: Peer, make: Callable[[Peer, int], SiteSession]) -> SiteSession:
        """A site has come. `make` is given how often that is by now."""
        with self._lock:
            number = self._numbers.get(peer.node_id, 0) + 1
            self._numbers[peer.node_id] = number
            self._known[peer.node_id] = peer
            self._endings.pop(peer.node_id, None)
            while len(self._known) > MOST_KNOWN:
                oldest = next(i for i in self._known if i not in self._live)
                del self._known[oldest], self._numbers[oldest]
            session = self._live[peer.node_id] = make(peer, number)
        self.exchange.wake()
        return session

    def close(self, session: SiteSession) -> None:
        """A site's stream has ended."""
        node_id = session.peer.node_id
        with self._lock:
            if self._live.get(node_id) is session:
                del self._live[node_id]
            if session.ending is not None:
                self._endings[node_id] = session.ending
        self.exchange.wake()

    def numbers(self) -> dict[int, int]:
        """The sites that are connected: node id -> how often it has come."""
        with self._lock:
            return {node_id: session.number for node_id, session in self._live.items()}

    def visits(self) -> dict[int, tuple[int, int]]:
        """Return the connected sites: node id -> number of the session, and of decisions in it."""
        with self._lock:
            return {node_id: (s.number, s.num_decisions) for node_id, s in self._live.items()}

    def num_sites(self) -> int:
        """How many nodes have come at some time."""
        with self._lock:
            return len(self._numbers)

    def ending(self, node_id: int) -> Ending | None:
        """Why the node's last session was ended from this side."""
        with self._lock:
            return self._endings.get(node_id)

    def hospital_of(self, node_id: int) -> str | None:
        """Whose certificate a node has shown; None where it is not, or no longer, let in."""
        with self._lock:
            peer = self._known.get(node_id)
        if peer is None or peer.certificate is None:
            return None
        verdict = self.keeper.verdict(peer.certificate)
        return None if verdict is None or isinstance(verdict, KeptOut) else verdict.hospital

    def end_those_kept_out(self) -> None:
        """End the sessions whose certificate was revoked or has expired meanwhile."""
        for session in self.all_live():
            if (certificate := session.peer.certificate) is None:
                continue
            if isinstance(verdict := self.keeper.verdict(certificate), KeptOut):
                session.end(verdict.reason, verdict.text)

    def call_all(self, calls: Sequence[tuple[int, int, Callable[[SiteSession], None]]]) -> None:
        """`call` for several at once: each with its node, its session, and what to do."""

        def do() -> None:
            for node_id, number, act in calls:
                session = self.live(node_id)
                if session is not None and session.number == number:
                    act(session)

        if calls and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(do)

    def call(self, node_id: int, number: int, act: Callable[[SiteSession], None]) -> None:
        """From another thread: let the link's loop do something to a session, if it is live."""
        self.call_all([(node_id, number, act)])
