"""`erosion.v1`: lets a site in by its certificate, greets it, and serves its stream."""

import asyncio
import hashlib
import logging
import secrets
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NoReturn

import grpc
from cryptography import x509

from erosion_common.protocol import frames
from erosion_common.protocol.frames import Kind, ProtocolFault, Reason, Versions
from erosion_common.support import expiry
from erosion_common.support.keys import certificate_in
from erosion_server.enrolment.admission import Admitted, NotAdmitted, RejectionLog
from erosion_server.link.channel import OpenRequests
from erosion_server.link.site_session import Ending, Peer, SiteSession
from erosion_server.link.spool import TransferThrottle

logger = logging.getLogger("erosion.line")


MOST_KNOWN = 100_000  # nodes that have connected at some time


class Sessions:
    """The sites' sessions. The link's event loop changes it, the strategy's thread reads it."""

    def __init__(self, exchange: OpenRequests, keeper: RejectionLog) -> None:
        self.exchange, self.keeper = exchange, keeper
        self._lock = threading.Lock()
        self._live: dict[int, SiteSession] = {}  # by node
        self._known: dict[int, Peer] = {}  # every node that has connected, as it did last
        self._numbers: dict[int, int] = {}  # how often it has connected
        self._endings: dict[int, Ending] = {}  # of its last session, where we ended it
        self._loop: asyncio.AbstractEventLoop | None = None

    def run_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """Note the link's loop, which has started."""
        self._loop = loop

    @staticmethod
    def node_id(hospital: str | None) -> int:
        """Return the same id for the same hospital; a new one for a site without a certificate."""
        if hospital is None:
            return secrets.randbits(62) + 2
        return int.from_bytes(hashlib.sha256(hospital.encode()).digest()[:8]) // 4 + 2

    def live(self, node_id: int) -> SiteSession | None:
        """Return the node's session, if it is connected."""
        with self._lock:
            return self._live.get(node_id)

    def all_live(self) -> list[SiteSession]:
        """Return every session."""
        with self._lock:
            return list(self._live.values())

    def begin(self, peer: Peer, make: Callable[[Peer, int], SiteSession]) -> SiteSession:
        """Add the session of a site that connected. `make` receives how often it has by now."""
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
        """Remove the session of a site with a stream that has ended."""
        node_id = session.peer.node_id
        with self._lock:
            if self._live.get(node_id) is session:
                del self._live[node_id]
            if session.ending is not None:
                self._endings[node_id] = session.ending
        self.exchange.wake()

    def numbers(self) -> dict[int, int]:
        """Return the connected sites: node id -> how often it has connected."""
        with self._lock:
            return {node_id: session.number for node_id, session in self._live.items()}

    def visits(self) -> dict[int, tuple[int, int]]:
        """Return the connected sites: node id -> number of the session, and of decisions in it."""
        with self._lock:
            return {node_id: (s.number, s.num_decisions) for node_id, s in self._live.items()}

    def num_sites(self) -> int:
        """Return how many nodes have connected at some time."""
        with self._lock:
            return len(self._numbers)

    def ending(self, node_id: int) -> Ending | None:
        """Return why the node's last session was ended from this side."""
        with self._lock:
            return self._endings.get(node_id)

    def hospital_of(self, node_id: int) -> str | None:
        """Return the hospital that a node's certificate belongs to; None where it is not let in."""
        with self._lock:
            peer = self._known.get(node_id)
        if peer is None or peer.certificate is None:
            return None
        verdict = self.keeper.verdict(peer.certificate)
        return None if verdict is None or isinstance(verdict, NotAdmitted) else verdict.hospital

    def end_denied(self) -> None:
        """End the sessions with a certificate that was revoked or has expired since."""
        for session in self.all_live():
            if (certificate := session.peer.certificate) is None:
                continue
            if isinstance(verdict := self.keeper.verdict(certificate), NotAdmitted):
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


GREETING_SECONDS = 10.0
MOST_GREETINGS = 4  # of one hospital at a time
MOST_CONNECTS, CONNECTS_SECONDS = 60, 60.0  # of one hospital in this many seconds: each is reported
IN_USE = (
    "its key is in use by another connection: the site runs twice, or a copy of its key is used"
    " elsewhere"
)
_CODES = {
    Reason.IN_USE: grpc.StatusCode.ALREADY_EXISTS,
    Reason.VERSION: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.ABUSE: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.SILENT: grpc.StatusCode.DEADLINE_EXCEEDED,
}


class Service:
    """The one method of the service, for every site."""

    def __init__(
        self,
        sessions: Sessions,
        ours: Versions,
        *,
        frame_bytes: int,
        certificate_expires: Callable[[], datetime | None],
    ) -> None:
        """`frame_bytes`: the largest that sites send in."""
        self._sessions, self._ours = sessions, ours
        self._throttle = TransferThrottle(sessions.num_sites)
        self._frame_bytes = frame_bytes
        self._certificate_expires = certificate_expires
        self._greetings: Counter[str] = Counter()  # under way, by hospital
        self._latest: dict[str, deque[float]] = {}  # when each hospital connected, lately
        self._probed: set[int] = set()  # nodes of which it is being found out if they live

    @property
    def handler(self) -> grpc.GenericRpcHandler:
        """For a gRPC server."""
        method = grpc.stream_stream_rpc_method_handler(self._connect)
        return grpc.method_handlers_generic_handler(frames.SERVICE, {frames.METHOD: method})

    async def _connect(self, _requests: Any, context: Any) -> None:
        try:
            certificate = certificate_of(context)
        except ValueError:
            text = "its certificate cannot be read; install the site kit again"
            await self._refuse(context, Reason.NOT_ENROLLED, text, "")
        verdict = await self._verdict(certificate, context)
        name = "" if verdict is None else verdict.hospital
        if self._greetings[name] >= MOST_GREETINGS and verdict is not None:
            await self._refuse(context, Reason.IN_USE, IN_USE, name)
        self._greetings[name] += 1
        try:
            hello = await self._hello(context, name)
            theirs = Versions.read(hello)
            if not theirs.fit(self._ours):
                both = f"it runs {theirs.words}, the coordinator {self._ours.words}"
                text = f"{both}: upgrade the older one"
                await self._refuse(context, Reason.VERSION, text, name)
            await self._greet(context, frames.json_frame(Kind.HELLO, self._welcome(verdict)), name)
            if hello.get("check") is True:
                return
            hospital = None if verdict is None else verdict.hospital
            node_id = self._sessions.node_id(hospital)
            peer = Peer(node_id, hospital, certificate, context.peer())
            await self._replace_dead(peer, context)
            if hospital is not None and self._connects_too_often(hospital):
                text = f"it connected {MOST_CONNECTS} times in {CONNECTS_SECONDS:.0f} s"
                await self._refuse(context, Reason.ABUSE, text, name)
        except ProtocolFault as problem:
            await self._refuse(context, Reason.ABUSE, f"it sent {problem}", name)
        finally:
            self._greetings.subtract([name])
            self._greetings += Counter()  # drops what is 0
        await self._serve(peer, context)

    async def _verdict(self, certificate: x509.Certificate | None, context: Any) -> Admitted | None:
        keeper = self._sessions.keeper
        keeper.call(context.peer())
        if keeper.admission is None:
            return None
        if certificate is None:  # TLS lets nobody in without one
            await self._refuse(context, Reason.NOT_ENROLLED, "it showed no certificate", "")
        verdict = keeper.verdict(certificate)
        if isinstance(verdict, NotAdmitted):
            await self._refuse(context, verdict.reason, verdict.text, verdict.hospital or "")
        return verdict

    async def _hello(self, context: Any, name: str) -> dict[str, Any]:
        try:
            received = await asyncio.wait_for(context.read(), GREETING_SECONDS)
        except TimeoutError:
            await self._refuse(context, Reason.ABUSE, "it said nothing", name)
        if received is grpc.aio.EOF:
            raise ProtocolFault("no greeting")
        kind, body = frames.opened(received)
        if kind is not Kind.HELLO:
            raise ProtocolFault(f"a {kind.name} frame before its greeting")
        return frames.json_body(body, most_bytes=frames.LARGEST_GREETING_BYTES)

    async def _greet(self, context: Any, welcome: bytes, name: str) -> None:
        try:
            await asyncio.wait_for(context.write(welcome), GREETING_SECONDS)
        except TimeoutError:  # else it would block its hospital for as long as it likes
            await self._refuse(context, Reason.ABUSE, "it did not take the greeting in", name)

    def _welcome(self, verdict: Admitted | None) -> dict[str, Any]:
        ends = self._certificate_expires()
        return {
            **self._ours.as_json(),
            "time": expiry.precise_now().isoformat(),
            "hospital": None if verdict is None else verdict.hospital,
            "expires": None if verdict is None else verdict.expires.isoformat(),
            "certificate_expires": None if ends is None else ends.isoformat(),
            # A site that waits for its turn has a frame under way, which gRPC keeps in memory.
            "frame_bytes": self._frame_bytes,
        }

    async def _replace_dead(self, peer: Peer, context: Any) -> None:
        """Of two connections with one key the first stays, unless it is dead."""
        earlier = self._sessions.live(peer.node_id)
        if earlier is None:
            return
        if peer.node_id in self._probed:
            await self._refuse(context, Reason.IN_USE, IN_USE, peer.hospital or "")
        self._probed.add(peer.node_id)
        try:
            lives = await earlier.answers()
        finally:
            self._probed.discard(peer.node_id)
        if lives:
            await self._refuse(context, Reason.IN_USE, IN_USE, peer.hospital or "")
        earlier.end(Reason.SILENT, "the site has come back by another connection")
        self._sessions.close(earlier)

    def _connects_too_often(self, hospital: str) -> bool:
        connects = self._latest.setdefault(hospital, deque(maxlen=MOST_CONNECTS))
        now = time.monotonic()
        if len(connects) == MOST_CONNECTS and now - connects[0] < CONNECTS_SECONDS:
            return True
        connects.append(now)
        return False

    async def _serve(self, peer: Peer, context: Any) -> None:
        exchange, throttle = self._sessions.exchange, self._throttle
        session = self._sessions.begin(
            peer, lambda peer, number: SiteSession(peer, number, exchange, throttle)
        )
        logger.debug("%s connected from %s", peer.hospital or peer.node_id, peer.origin)

        async def read() -> bytes | None:
            received = await context.read()
            return None if received is grpc.aio.EOF else received

        reader = asyncio.ensure_future(session.read_all(read))
        writer = asyncio.ensure_future(session.write_all(context.write))
        over = asyncio.ensure_future(session.over.wait())
        tasks = (reader, writer, over)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            ended = reader.done() and not reader.cancelled()
            problem = reader.exception() if ended else None
            if isinstance(problem, ProtocolFault):
                session.end(Reason.ABUSE, f"it sent {problem}")
            elif problem is not None:  # there is no memory, say
                who, kind = peer.hospital or peer.node_id, type(problem).__name__
                logger.error("what %s sent cannot be taken in (%s: %s)", who, kind, problem)
        finally:
            for task in tasks:
                task.cancel()
            self._sessions.close(session)
        if (ending := session.ending) is not None:
            told = ending.reason is not Reason.SILENT  # a site that vanished is not denied
            await self._refuse(
                context, ending.reason, ending.text, peer.hospital or "", is_told=told
            )

    async def _refuse(
        self, context: Any, reason: Reason, text: str, hospital: str, *, is_told: bool = True
    ) -> NoReturn:
        if is_told:
            self._sessions.keeper.deny(hospital or None, context.peer(), reason, text)
        code = _CODES.get(reason, grpc.StatusCode.UNAUTHENTICATED)
        time = expiry.precise_now().isoformat()
        await context.abort(code, text, ((frames.REASON, reason.value), (frames.TIME, time)))
        raise AssertionError("abort raises")


def certificate_of(context: Any) -> x509.Certificate | None:
    """Return the other side's certificate; None without TLS. Raises ValueError."""
    shown = (context.auth_context() or {}).get("x509_pem_cert") or ()
    return certificate_in(shown[0]) if shown else None
