"""The coordinator's port, with TLS and enrolled keys, or plain on this machine only."""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import TimeoutError as Overdue
from datetime import datetime
from pathlib import Path
from typing import Any

import grpc

from erosion_common.errors import EnrolmentError, LinkError
from erosion_common.protocol.flower import identify
from erosion_common.protocol.frames import (
    LARGEST_DATA_BYTES,
    LARGEST_FRAME_BYTES,
    MODEST_DATA_BYTES,
    PING_TIMEOUT,
    WIRE,
    Reason,
    Versions,
)
from erosion_common.protocol.messages import OLDEST_PROTOCOL, PROTOCOL
from erosion_common.support import expiry
from erosion_common.support.expiry import OnceADay
from erosion_common.support.keys import PublicKey
from erosion_common.support.network import is_loopback
from erosion_common.support.process import RunningTime, memory_bytes, raise_limit
from erosion_common.support.software import software_version
from erosion_server.enrolment.admission import Authorizer, NotAdmitted, RejectionLog
from erosion_server.enrolment.certificates import ServingCertificate, load_certificate
from erosion_server.enrolment.federation_folder import DEFAULT_PORT, FederationFolder
from erosion_server.link.channel import LinkGrid, OpenRequests
from erosion_server.link.service import Service, Sessions
from erosion_server.link.site_session import TICK_SECONDS
from erosion_server.link.spool import Spool

logger = logging.getLogger("erosion.line")

START_SECONDS, STOP_SECONDS = 30.0, 10.0
LAST_CALLS_SECONDS = 5.0  # for what gRPC has cancelled to end
HANDSHAKE_SECONDS = 10.0  # for TLS; who takes longer is disconnected
IDLE_SECONDS = 20.0  # of a connection without a call
RESERVED_FILES = 256  # of this process's limit, for all that is no connection
MIN_CONNECTIONS = 64
CONNECTION_BYTES = 2**16  # of memory that one takes in its handshake
MEMORY_SHARE = 0.25  # for connections
STREAMS = 4  # of one connection; a site needs one
METADATA_BYTES = 2**13  # of a call


class Link:
    """`start` it, `open` a channel for each study, and `stop` it. One thread serves every site."""

    def __init__(
        self,
        address: str,
        *,
        certificate: ServingCertificate | None = None,
        admission: Authorizer | None = None,
        bytes_ahead: int = LARGEST_DATA_BYTES,
        address_in_kits: str = "",
        look_at_expiry: Callable[[], None] = lambda: None,
    ) -> None:
        """Listen on `address` ("host:port").

        `certificate`: shown to sites, None for plain gRPC. `admission`: decides who is let in,
        None: everybody is. `bytes_ahead`: what of a site may arrive before it is read.
        `address_in_kits`: what sites dial. `look_at_expiry` is called once a day; it may raise
        EnrolmentError.
        """
        self._look_at_expiry = look_at_expiry
        self._keeper = RejectionLog(
            admission, lambda: None if certificate is None else certificate.trouble
        )
        self._sessions = Sessions(OpenRequests(), self._keeper)
        self._certificate = certificate
        self._bytes_ahead = bytes_ahead
        self.versions = Versions(WIRE, PROTOCOL, software_version(), OLDEST_PROTOCOL)
        self.clock = RunningTime()
        self.grid = self.open()  # for messages of no study
        self._asked_address = self.address = address
        self._address_in_kits = address_in_kits
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._server: Any = None
        self._most_connections = MIN_CONNECTIONS
        self._ticker: asyncio.Task[None] | None = None

    def open(self, spool: Path | None = None) -> LinkGrid:
        """Open a channel; `spool`: folder for large replies, None: memory. Raises LinkError."""
        return LinkGrid(self._sessions, self.clock, None if spool is None else Spool(spool))

    def interrupt(self) -> None:
        """End every study at its next look at the link, as Ctrl-C does in the main thread."""
        for mailbox in self._sessions.exchange.mailboxes():
            mailbox.fail(KeyboardInterrupt())

    def start(self) -> None:
        """Open the port; raises LinkError where that cannot be done."""
        identify()
        self._most_connections = most_connections(raise_limit(), memory_bytes())
        loop = self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, name="line", daemon=True)
        self._thread.start()
        self._sessions.run_on(loop)
        try:
            opening = asyncio.wait_for(self._open(), START_SECONDS)
            port = _do(opening, loop, START_SECONDS + STOP_SECONDS)
        except (Overdue, RuntimeError) as problem:
            self._end_loop(loop)
            why = (
                "the port is in use, or below 1024 and not for this account, or the address is not"
                " this machine's. Stop the other program (`ss -ltnp` names it) or give another"
                " address with --address HOST:PORT"
            )
            if isinstance(problem, Overdue):
                why = (
                    f"that took over {START_SECONDS:.0f} s. Start it when this machine is less busy"
                )
            raise LinkError(
                f"The coordinator cannot listen on {self._asked_address}: {why}."
            ) from None
        self.address = f"{self._asked_address.rpartition(':')[0]}:{port}"

    @property
    def address_for_sites(self) -> str:
        """What a site can dial: 0.0.0.0 is where to listen, and nobody's address."""
        host = self.address.rpartition(":")[0].strip("[]")
        return self._address_in_kits if host in ("0.0.0.0", "::", "") else self.address

    @property
    def certificate_expires(self) -> datetime | None:
        """When sites stop accepting the certificate that they are shown; None without TLS."""
        return None if self._certificate is None else self._certificate.expires

    @property
    def denials(self) -> dict[str, int]:
        """How many connections were not let in since the start, by reason."""
        return self._keeper.denials

    @property
    def enrolled_only(self) -> bool:
        """Only sites with an enrolled key are let in."""
        return self._keeper.admission is not None

    def hospital_of(self, node_id: int) -> str | None:
        """Return the hospital that a node's certificate belongs to; None where it is not let in."""
        return self._sessions.hospital_of(node_id)

    def why_not(self, hospital: str) -> str | None:
        """Return why no site could come in as `hospital` now; None where one could."""
        admission = self._keeper.admission
        return None if admission is None else admission.why_not(hospital)

    def may_renew(self, hospital: str) -> bool:
        """Return whether a renewed key would let it in again, or does; not where it was revoked."""
        admission = self._keeper.admission
        return admission is None or admission.may_renew(hospital)

    def keys(self) -> dict[str, PublicKey]:
        """Return each enrolled hospital's key, as far as it is known."""
        admission = self._keeper.admission
        return {} if admission is None else admission.keys()

    def evict(self, node_id: int) -> None:
        """Disconnect a node with a key that is no longer let in, and give the reason."""
        session = self._sessions.live(node_id)
        if session is not None:
            certificate = session.peer.certificate
            verdict = None if certificate is None else self._keeper.verdict(certificate)
            reason, text = Reason.REVOKED, "its key was replaced; ask the coordinator"
            if isinstance(verdict, NotAdmitted):
                reason, text = verdict.reason, verdict.text
            self._sessions.call(node_id, session.number, lambda s: s.end(reason, text))

    def stop(self) -> None:
        """Close the port; returns within a few seconds."""
        if self._loop is not None:
            try:
                _do(self._close(), self._loop, STOP_SECONDS)
            except Overdue:
                logger.warning("the connections did not end in time; they are cut")
            self._end_loop(self._loop)

    async def _open(self) -> int:
        service = Service(
            self._sessions,
            self.versions,
            frame_bytes=max(self._bytes_ahead, MODEST_DATA_BYTES),
            certificate_expires=lambda: self.certificate_expires,
        )
        options = _options(self._most_connections, self._bytes_ahead)
        self._server = grpc.aio.server(options=options)
        self._server.add_generic_rpc_handlers((service.handler,))
        if self._certificate is None:
            port: int = self._server.add_insecure_port(self._asked_address)
        else:
            credentials = self._certificate.credentials(on_handshake=self._keeper.handshake)
            port = self._server.add_secure_port(self._asked_address, credentials)
        await self._server.start()
        self._ticker = asyncio.ensure_future(self._tick())
        return port

    async def _tick(self) -> None:
        """Seconds in which this program runs; those in which it was stopped do not count."""
        once_a_day = OnceADay()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.clock.now()
            self._sessions.end_denied()
            for session in self._sessions.all_live():
                session.tick()
            if once_a_day.is_due():
                try:
                    self._look_at_expiry()
                except (EnrolmentError, OSError) as problem:
                    logger.error("what is about to expire is not known: %s", problem)

    async def _close(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
        if self._server is not None:
            await self._server.stop(grace=0.5)
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(
            lambda _loop, context: logger.debug("while closing: %s", context.get("message"))
        )
        # Calls end on this path now. gRPC prints a traceback for each of its tasks that is
        # cancelled, past every log, so none is.
        if calls := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(calls, timeout=LAST_CALLS_SECONDS)

    def _end_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = None
        loop.call_soon_threadsafe(loop.stop)
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)
        if not loop.is_running():
            loop.close()


def most_connections(most_files: int, memory: int) -> int:
    """Return the limit of connections for this number of open files and bytes of memory."""
    for_connections = int(MEMORY_SHARE * memory) // CONNECTION_BYTES
    return max(MIN_CONNECTIONS, min(most_files - RESERVED_FILES, for_connections))


def _do(work: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop, seconds: float) -> Any:
    return asyncio.run_coroutine_threadsafe(work, loop).result(seconds)


def _bytes_ahead(num_hospitals: int) -> int:
    # What arrives of a site before it is read stays in memory. gRPC would raise that to several MB
    # where it is fast; of all sites 8 MiB a round trip of 50 ms are 1.3 Gbit/s.
    return max(2**17, min(2**23 // (num_hospitals or 16), LARGEST_DATA_BYTES))


def _options(most_connections: int, bytes_ahead: int) -> list[tuple[str, int]]:
    return [
        ("grpc.so_reuseport", 0),  # else a second coordinator would share the port
        ("grpc.max_receive_message_length", LARGEST_FRAME_BYTES),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_allowed_incoming_connections", most_connections),
        ("grpc.max_concurrent_streams", STREAMS),
        ("grpc.max_metadata_size", METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", METADATA_BYTES),
        ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_SECONDS * 1000)),
        ("grpc.max_connection_idle_ms", int(IDLE_SECONDS * 1000)),
        PING_TIMEOUT,
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", bytes_ahead),
    ]


admission_logger = logging.getLogger("erosion.admission")


def make_link(
    hospitals: Sequence[str],
    address: str | None,
    federation: FederationFolder | None,
) -> Link:
    """Return a link that is not started; without `federation` it has no TLS and no enrolment.

    `address` None: every address of this machine at the port that the site kits name, or the
    loopback's. `hospitals`: their keys' expiry is watched; none: studies are to come, and all that
    are enrolled are watched.

    Raises LinkError, EnrolmentError.
    """
    bytes_ahead = _bytes_ahead(len(hospitals))
    if federation is None:
        address = address or f"127.0.0.1:{DEFAULT_PORT}"
        if not is_loopback(address):
            raise LinkError(
                "--insecure is for this machine only",
                where=f"--address {address}",
                remedy="Use 127.0.0.1:PORT, or make a federation with `erosion enroll init` and"
                " leave --insecure out.",
            )
        return Link(address, bytes_ahead=bytes_ahead)
    place = federation.read_place()
    certificate = ServingCertificate(federation)
    admission = Authorizer(federation)
    told: list[str] = []

    def look_at_expiry() -> None:
        """Log what is new."""
        found = expiry_warnings(hospitals, federation, certificate, admission)
        for warning in found:
            if warning not in told:
                admission_logger.warning("%s", warning)
        told[:] = found

    look_at_expiry()
    return Link(
        address or f"0.0.0.0:{place.port}",
        certificate=certificate,
        admission=admission,
        bytes_ahead=bytes_ahead,
        address_in_kits=place.address,
        look_at_expiry=look_at_expiry,
    )


def expiry_warnings(
    hospitals: Sequence[str],
    federation: FederationFolder,
    certificate: ServingCertificate,
    admission: Authorizer,
) -> list[str]:
    """Return what will soon keep one of `hospitals` out, or does so already."""
    warnings = []
    if certificate.trouble is not None:
        warnings.append(certificate.trouble)
    elif expiry.ends_soon(certificate.expires):
        warnings.append(
            f"the coordinator's certificate is {expiry.in_words(certificate.expires)}; run:"
            f" erosion enroll renew coordinator{federation.option}"
        )
    authority = load_certificate(federation.authority).not_valid_after_utc
    if expiry.ends_soon(authority):
        warnings.append(
            f"the federation's authority is {expiry.in_words(authority)}; a new one means a new"
            " kit for every site"
        )
    expiries = admission.expiries()
    for hospital in hospitals or expiries:  # a queue's or an app's are all that are enrolled
        if (reason := admission.why_not(hospital)) is not None:
            remedy = "renew" if hospital in expiries else "site"
            warnings.append(
                f"{hospital} cannot connect: {reason}; run:"
                f" erosion enroll {remedy} {hospital}{federation.option}"
            )
        elif hospital in expiries and expiry.ends_soon(expiries[hospital]):
            warnings.append(
                f"the key of {hospital} is {expiry.in_words(expiries[hospital])}; run: erosion"
                f" enroll renew {hospital}{federation.option}"
            )
    return warnings


def federation_or_none(folder: FederationFolder, *, insecure: bool) -> FederationFolder | None:
    """Return the federation to serve; None where the operator wants none. Raises EnrolmentError."""
    if insecure:
        return None
    if not folder.place.exists():
        raise EnrolmentError(
            f"There is no federation in {folder.path}. --federation says where it is; `erosion"
            f" enroll init{folder.option}` makes one, and `erosion enroll site"
            f" NAME{folder.option}` a kit for each hospital",
            remedy="To try things on this machine alone, use --insecure, or `erosion testbed`.",
        )
    return folder
