"""`erosion.v1`: lets a site in by its certificate, greets it, and serves its stream."""

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable
from datetime import datetime
from typing import Any, NoReturn

import grpc
from cryptography import x509

from erosion.common.line.frames import (
    LARGEST_DATA_BYTES,
    LARGEST_GREETING_BYTES,
    METHOD,
    MODEST_DATA_BYTES,
    SERVICE,
    Kind,
    LineFault,
    Versions,
    json_body,
    json_frame,
    opened,
)
from erosion.common.protocol import admission_terms
from erosion.common.protocol.admission_terms import Reason
from erosion.common.support import expiry
from erosion.common.support.keys import certificate_in
from erosion.server.enrolment.authorizer import Admitted, KeptOut
from erosion.server.link.sessions import Sessions
from erosion.server.link.site_session import Peer, SiteSession
from erosion.server.link.spool import TransferThrottle

logger = logging.getLogger("erosion.line")

GREETING_SECONDS = 10.0
MOST_GREETINGS = 4  # of one hospital at a time
MOST_COMINGS, COMINGS_SECONDS = 60, 60.0  # of one hospital in so many seconds: each is told of
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
        is_short_of_memory: bool,
        certificate_expires: Callable[[], datetime | None],
    ) -> None:
        """`is_short_of_memory`: sites send in small frames."""
        self._sessions, self._ours = sessions, ours
        self._throttle = TransferThrottle(sessions.num_sites)
        self._is_short_of_memory = is_short_of_memory
        self._certificate_expires = certificate_expires
        self._greetings: Counter[str] = Counter()  # under way, by hospital
        self._comings: dict[str, deque[float]] = {}  # when each hospital came, lately
        self._probed: set[int] = set()  # nodes of which it is being found out if they live

    @property
    def handler(self) -> grpc.GenericRpcHandler:
        """For a gRPC server."""
        method = grpc.stream_stream_rpc_method_handler(self._connect)
        return grpc.method_handlers_generic_handler(SERVICE, {METHOD: method})

    async def _connect(self, _requests: Any, context: Any) -> None:
        """One site, from its greeting to its end."""
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
                text = (
                    f"it runs {theirs.words}, the coordinator {self._ours.words}: install the same"
                    " version on both sides"
                )
                await self._refuse(context, Reason.VERSION, text, name)
            await self._greet(context, json_frame(Kind.HELLO, self._welcome(verdict)), name)
            if hello.get("check") is True:
                return
            hospital = None if verdict is None else verdict.hospital
            node_id = self._sessions.node_id(hospital)
            peer = Peer(node_id, hospital, certificate, context.peer())
            await self._make_room(peer, context)
            if hospital is not None and self._comes_too_often(hospital):
                text = f"it connected {MOST_COMINGS} times in {COMINGS_SECONDS:.0f} s"
                await self._refuse(context, Reason.ABUSE, text, name)
        except LineFault as problem:
            await self._refuse(context, Reason.ABUSE, f"it sent {problem}", name)
        finally:
            self._greetings[name] -= 1
            if not self._greetings[name]:
                del self._greetings[name]
        await self._serve(peer, context)

    async def _verdict(self, certificate: x509.Certificate | None, context: Any) -> Admitted | None:
        keeper = self._sessions.keeper
        keeper.call(context.peer())
        if keeper.admission is None:
            return None
        if certificate is None:  # TLS lets nobody in without one
            await self._refuse(context, Reason.NOT_ENROLLED, "it showed no certificate", "")
        verdict = keeper.verdict(certificate)
        if isinstance(verdict, KeptOut):
            await self._refuse(context, verdict.reason, verdict.text, verdict.hospital or "")
        return verdict

    async def _hello(self, context: Any, name: str) -> dict[str, Any]:
        try:
            received = await asyncio.wait_for(context.read(), GREETING_SECONDS)
        except TimeoutError:
            await self._refuse(context, Reason.ABUSE, "it said nothing", name)
        if received is grpc.aio.EOF:
            raise LineFault("no greeting")
        kind, body = opened(received)
        if kind is not Kind.HELLO:
            raise LineFault(f"a {kind.name} frame before its greeting")
        return json_body(body, most_bytes=LARGEST_GREETING_BYTES)

    async def _greet(self, context: Any, welcome: bytes, name: str) -> None:
        try:
            await asyncio.wait_for(context.write(welcome), GREETING_SECONDS)
        except TimeoutError:  # else it would keep its hospital out for as long as it likes
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
            "frame_bytes": MODEST_DATA_BYTES if self._is_short_of_memory else LARGEST_DATA_BYTES,
        }

    async def _make_room(self, peer: Peer, context: Any) -> None:
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

    def _comes_too_often(self, hospital: str) -> bool:
        comings = self._comings.setdefault(hospital, deque(maxlen=MOST_COMINGS))
        now = time.monotonic()
        if len(comings) == MOST_COMINGS and now - comings[0] < COMINGS_SECONDS:
            return True
        comings.append(now)
        return False

    async def _serve(self, peer: Peer, context: Any) -> None:
        session = self._sessions.begin(peer, self._session)
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
            problem = _failure(reader) if reader.done() else None
            if isinstance(problem, LineFault):
                session.end(Reason.ABUSE, f"it sent {problem}")
            elif problem is not None:  # there is no memory, say
                who, kind = peer.hospital or peer.node_id, type(problem).__name__
                logger.error("what %s sent cannot be taken in (%s: %s)", who, kind, problem)
        finally:
            for task in tasks:
                task.cancel()
            self._sessions.close(session)
        if (ending := session.ending) is not None:
            told = ending.reason is not Reason.SILENT  # a site that vanished is not turned away
            await self._refuse(
                context, ending.reason, ending.text, peer.hospital or "", is_told=told
            )

    def _session(self, peer: Peer, number: int) -> SiteSession:
        return SiteSession(peer, number, self._sessions.exchange, self._throttle)

    async def _refuse(
        self, context: Any, reason: Reason, text: str, hospital: str, *, is_told: bool = True
    ) -> NoReturn:
        """End the call, and record why."""
        if is_told:
            self._sessions.keeper.keep_out(hospital or None, context.peer(), reason, text)
        code = _CODES.get(reason, grpc.StatusCode.UNAUTHENTICATED)
        await context.abort(code, text, ((admission_terms.REASON, reason.value),))
        raise AssertionError("abort raises")


def certificate_of(context: Any) -> x509.Certificate | None:
    """The certificate that the other side has shown; None on a line without TLS.

    Raises ValueError for one that cannot be read.
    """
    shown = (context.auth_context() or {}).get("x509_pem_cert") or ()
    return certificate_in(shown[0]) if shown else None


def _failure(task: "asyncio.Future[Any]") -> BaseException | None:
    return None if task.cancelled() else task.exception()
