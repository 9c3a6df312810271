"""A site's end of the link: one gRPC stream that carries requests in and replies out."""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import grpc
from flwr.app import Message, RecordDict

from erosion_common.protocol.envelope import (
    Assembly,
    FrameSize,
    MemorySpace,
    data_frames,
    describe,
    read_description,
)
from erosion_common.protocol.flower import RequestMessage
from erosion_common.protocol.frames import (
    ARRIVING_PATIENCE,
    LARGEST_HEAD_BYTES,
    PATH,
    PING_TIMEOUT,
    WIRE,
    Kind,
    ProtocolFault,
    RunNews,
    Versions,
    frame,
    json_body,
    json_frame,
    opened,
    text_in,
)
from erosion_common.protocol.messages import OLDEST_PROTOCOL, PROTOCOL
from erosion_common.support.expiry import precise_now, span
from erosion_common.support.process import memory_bytes
from erosion_common.support.software import software_version


class LinkClosed(Exception):  # noqa: N818 - how a writer learns about it
    """The connection has ended, and nothing more can be sent."""


class SendQueue:
    """Frames to send; gRPC iterates over it in a separate thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._control: deque[bytes] = deque()
        self._data: bytes | None = None
        self._is_closed = False

    def __iter__(self) -> "SendQueue":
        return self

    def __next__(self) -> bytes:
        """Return the next frame, waiting for one."""
        with self._changed:
            while not (self._control or self._data is not None or self._is_closed):
                self._changed.wait()
            if self._control:
                return self._control.popleft()
            if self._data is None:
                raise StopIteration
            data, self._data = self._data, None
            self._changed.notify_all()
            return data

    def say(self, frame: bytes, *, once: bool = False) -> None:
        """Send a short frame soon; `once`: unless an equal one is already waiting."""
        with self._changed:
            if once and frame in self._control:
                return
            self._control.append(frame)
            self._changed.notify_all()

    def put(self, frame: bytes) -> None:
        """Send a frame after the one before it; waits for that. Raises LinkClosed."""
        with self._changed:
            while self._data is not None and not self._is_closed:
                self._changed.wait()
            if self._is_closed:
                raise LinkClosed
            self._data = frame
            self._changed.notify_all()

    def close(self) -> None:
        """End sending; waiting writers get LinkClosed."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()


GREETING_SECONDS = 30.0  # for the connection, TLS and the coordinator's greeting
GOODBYE_SECONDS = 2.0
TICK_SECONDS = 1.0
SILENT_TICKS = 30  # of silence before the connection counts as dead; the coordinator asks each 5 s
SIGN_TICKS = 5  # between two unprompted signs of life while a request is arriving
MEMORY_SHARE = 0.5  # of this machine's memory; more in requests would be a fault of the coordinator
MOST_WAITING = 64  # requests that are wanted and not yet processed
MOST_DROPPED = 1000
LONGEST_TTL_SECONDS = 7 * 86_400.0
NODE_ID = 2  # of this site to itself; an app sees the coordinator's number for it
OURS = Versions(WIRE, PROTOCOL, software_version(), OLDEST_PROTOCOL)


@dataclass(frozen=True, slots=True)
class Tls:
    """The authority to trust, and the certificate to show; all PEM."""

    root: bytes
    certificate: bytes
    key: bytes = field(repr=False)


UNEASY = timedelta(minutes=1)  # a clock further off makes certificates and logs doubtful


def wrong_clock(ahead: timedelta | None, uncertain: timedelta = timedelta(0)) -> str:
    """Say by how much this machine's clock is ahead, and the remedy; "" within UNEASY."""
    if ahead is None or abs(ahead) <= UNEASY + uncertain:
        return ""
    side = "ahead of" if ahead > timedelta(0) else "behind"
    off = f"{span(ahead)} {side} the coordinator's"
    return f"this machine's clock is {off}; set the one that is wrong by NTP"


@dataclass(frozen=True, slots=True)
class Welcome:
    """What the coordinator answered to the greeting."""

    problem: grpc.RpcError | None = None  # why this site is rejected; None: it is admitted
    versions: Versions | None = None
    hospital: str | None = None  # name on the certificate; None where nobody is enrolled
    expires: datetime | None = None  # when the certificate ends
    certificate_expires: datetime | None = None  # the coordinator's
    ahead: timedelta | None = None  # by how much this machine's clock is; None: it did not say
    uncertain: timedelta = timedelta(0)  # half the round-trip time of the question


class LostLink(grpc.RpcError):  # type: ignore[misc]  # gRPC has no types
    """The connection has ended without a reason from the other side."""


class SiteLink:
    """One site's connection. Raises grpc.RpcError; the agent decides what to do."""

    def __init__(
        self,
        address: str,
        *,
        tls: Tls | None = None,
        proxy: str | None = None,
        look_into: Callable[[], str] = str,
    ) -> None:
        """Prepare a connection; `tls` None: unencrypted. `proxy`: "host:port" of an HTTP proxy.

        `look_into` says more where TLS was not agreed; "" for nothing.
        """
        self.look_into = look_into
        options: list[tuple[str, Any]] = [
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", 16 * LARGEST_HEAD_BYTES),
            ("grpc.enable_retries", 0),
            PING_TIMEOUT,
            # A separate connection: faults of an earlier one do not linger.
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_http_proxy", 0),  # the site file and we decide
        ]
        if proxy is not None:
            options[-1] = ("grpc.http_proxy", as_url(proxy))
        if tls is None:
            self._channel = grpc.insecure_channel(address, options=options)
        else:
            credentials = grpc.ssl_channel_credentials(tls.root, tls.key, tls.certificate)
            self._channel = grpc.secure_channel(address, credentials, options=options)
        self._call: Any = None
        self._queue = SendQueue()
        self._inbox = threading.Condition()  # `_waiting` or `_ended` has changed
        self._waiting: dict[str, tuple[Message, int]] = {}  # wanted requests, and their bytes
        self._ended: grpc.RpcError | None = None  # what ended the connection
        self._received = threading.Event()  # something has arrived
        self._silent_ticks = 0
        self._dropped: dict[str, None] = {}  # requests that are not wanted any more
        self._sending: str | None = None
        self._frame_size = FrameSize()
        self._most_bytes = int(MEMORY_SHARE * memory_bytes())
        self._arriving: Assembly | None = None
        self._arriving_bytes = 0  # of its head and arrays
        self.welcome = Welcome()

    def __enter__(self) -> Self:
        """Connect, and wait to be admitted."""
        try:
            self.welcome = self._greet(GREETING_SECONDS)
            if self.welcome.problem is not None:
                raise self.welcome.problem
        except BaseException:  # with a failed `__enter__`, `__exit__` is not called
            self._close()
            raise
        for work in (self._receive, self._watch):
            threading.Thread(target=work, name="line", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Say goodbye by ending the stream, once pending frames are sent."""
        self._queue.close()
        self._received.wait(GOODBYE_SECONDS)
        self._close()

    def check(self, *, seconds: float) -> Welcome:
        """Ask whether this site is admitted, without joining; then close the connection."""
        try:
            return self._greet(seconds, check=True)
        finally:
            self._close()

    def receive(self, seconds: float) -> Message | None:
        """Return the next request, if one arrives in `seconds`. Raises what ended the link."""
        with self._inbox:
            self._inbox.wait_for(lambda: self._waiting or self._ended, seconds)
            if self._waiting:
                return self._waiting.pop(next(iter(self._waiting)))[0]
            if self._ended is not None:
                raise self._ended
        return None

    def is_dropped(self, request: Message) -> bool:
        """Return whether the answer to a request is no longer wanted."""
        return request.metadata.message_id in self._dropped

    def ask_again(self) -> None:
        """Let the coordinator ask about undecided studies again."""
        self._queue.say(frame(Kind.AGAIN))

    def reply(self, request: Message, reply: Message, log_head: str | None = None) -> None:
        """Send a reply, unless it is no longer wanted."""
        request_id = request.metadata.message_id
        head: dict[str, Any] = {"re": request_id}
        if log_head is not None:
            head["log"] = log_head
        buffers: list[memoryview] = []
        if reply.has_error():
            head["error"] = {"code": reply.error.code, "reason": reply.error.reason or ""}
        else:
            head["records"], buffers = describe(reply.content)
        self._sending = request_id
        try:
            self._queue.put(json_frame(Kind.MESSAGE, head))
            for data in data_frames(buffers, self._frame_size):
                if self._sending is None:
                    self._queue.put(frame(Kind.CUT))
                    return
                begun = time.monotonic()
                self._queue.put(data)
                self._frame_size.took(time.monotonic() - begun)
        except LinkClosed:
            return  # the next receiver learns why
        finally:
            self._sending = None

    def _greet(self, seconds: float, *, check: bool = False) -> Welcome:
        asked = precise_now()
        self._queue.say(json_frame(Kind.HELLO, {**OURS.as_json(), "check": check}))
        self._call = self._channel.stream_stream(PATH)(self._queue)
        overdue = threading.Timer(seconds, self._call.cancel)
        overdue.daemon = True
        overdue.start()
        try:
            kind, body = opened(next(self._call))
            if kind is not Kind.HELLO:
                raise ProtocolFault("no greeting")
            said = json_body(body)
            took = precise_now() - asked
            self._frame_size = FrameSize.asked(said.get("frame_bytes"))
            theirs = time_in(said, "time")
            return Welcome(
                versions=Versions.read(said),
                hospital=text_in(said, "hospital") if said.get("hospital") else None,
                expires=time_in(said, "expires"),
                certificate_expires=time_in(said, "certificate_expires"),
                ahead=None if theirs is None else asked + took / 2 - theirs,
                uncertain=took / 2,
            )
        except grpc.RpcError as problem:
            return Welcome(problem=problem)
        except (ProtocolFault, StopIteration):
            return Welcome(problem=LostLink("it does not speak this program's language"))
        finally:
            overdue.cancel()

    def _receive(self) -> None:
        """Receive while this site trains, so that the coordinator sees that it is alive."""
        try:
            for received in self._call:
                self._silent_ticks = 0
                self._take(received)
            problem: grpc.RpcError = LostLink("it has ended the connection")
        except ProtocolFault as fault:
            self._call.cancel()
            problem = LostLink(f"it sent {fault}")
        except grpc.RpcError as lost:
            problem = LostLink("nothing was heard of it") if self._is_silent() else lost
        except ValueError:
            problem = LostLink("the connection was closed")
        except Exception as nonsense:  # noqa: BLE001 - the connection ends; the agent reports why
            self._call.cancel()
            problem = LostLink(f"it sent what cannot be read ({type(nonsense).__name__})")
        self._queue.close()
        self._received.set()
        with self._inbox:
            self._ended = problem
            self._inbox.notify_all()

    def _take(self, received: bytes) -> None:
        kind, body = opened(received)
        match kind:
            case Kind.MESSAGE:
                head = json_body(body)
                description = read_description(head.pop("records", None))
                self._arriving_bytes = len(body) + description.num_bytes
                with self._inbox:
                    waiting = sum(num_bytes for _, num_bytes in self._waiting.values())
                if self._arriving_bytes + waiting > self._most_bytes:
                    raise ProtocolFault(f"requests of more than {self._most_bytes} bytes")
                space = MemorySpace(description.num_bytes)
                self._arriving = Assembly(head, description, space)
                self._deliver_if_whole()
            case Kind.DATA:
                if self._arriving is None:
                    raise ProtocolFault("data of no message")
                self._arriving.take(body)
                self._deliver_if_whole()
            case Kind.CUT:
                self._arriving = None
            case Kind.DROP:
                self._drop(bytes(body[:100]).decode(errors="replace"))
            case Kind.PING:
                self._queue.say(frame(Kind.PONG), once=True)
            case _:
                pass

    def _deliver_if_whole(self) -> None:
        if self._arriving is None or not self._arriving.is_whole:
            return
        head, content = self._arriving.head, self._arriving.content()
        self._arriving = None
        request = _request(head, content)
        if self.is_dropped(request):
            return
        request_id = request.metadata.message_id
        with self._inbox:  # what no honest coordinator sends ends the connection
            if request_id in self._waiting:
                raise ProtocolFault("two requests under one id")
            if len(self._waiting) >= MOST_WAITING:
                raise ProtocolFault(
                    f"more than {MOST_WAITING} requests before it waited for an answer"
                )
            self._waiting[request_id] = request, self._arriving_bytes
            self._inbox.notify_all()

    def _drop(self, request_id: str) -> None:
        with self._inbox:
            self._waiting.pop(request_id, None)
        self._dropped[request_id] = None
        while len(self._dropped) > MOST_DROPPED:
            del self._dropped[next(iter(self._dropped))]
        if self._sending == request_id:
            self._sending = None

    def _watch(self) -> None:
        """Give up a dead connection. Only seconds in which this program runs count."""
        for tick in count(1):
            if self._received.wait(TICK_SECONDS):
                return
            self._silent_ticks += 1
            if self._is_silent():
                self._call.cancel()
                return
            # The coordinator's question waits behind what it has sent: minutes on a slow network.
            if self._arriving is not None and tick % SIGN_TICKS == 0:
                self._queue.say(frame(Kind.PONG), once=True)

    def _is_silent(self) -> bool:
        patience = 1 if self._arriving is None else ARRIVING_PATIENCE
        return self._silent_ticks >= patience * SILENT_TICKS

    def _close(self) -> None:
        self._queue.close()
        if self._call is not None:
            with contextlib.suppress(grpc.RpcError, ValueError):
                self._call.cancel()
        # If an interruption came while it began the call, gRPC waits without end for the call's.
        closing = threading.Thread(target=self._channel.close, name="line", daemon=True)
        closing.start()
        closing.join(GOODBYE_SECONDS)


def _request(head: dict[str, Any], content: RecordDict) -> Message:
    ttl = head.get("ttl")  # seconds for which an answer is wanted
    if not (isinstance(ttl, int | float) and 1 <= ttl <= LONGEST_TTL_SECONDS):
        ttl = 3600.0
    run = RunNews.read(head.get("run"))
    try:
        return RequestMessage(
            content,
            text_in(head, "id"),
            NODE_ID if run is None else run.node,
            text_in(head, "type"),
            group_id=text_in(head, "group"),
            ttl=float(ttl),
            run=run,
        )
    except (ValueError, TypeError) as problem:
        raise ProtocolFault(f"a request that cannot be made ({type(problem).__name__})") from None


def time_in(said: dict[str, Any], name: str) -> datetime | None:
    """Return a time that the coordinator sent; None where it sent none, or a malformed one."""
    try:
        time = datetime.fromisoformat(said[name])
        return time.astimezone(UTC) if time.tzinfo is not None else None
    except (KeyError, ValueError, TypeError, OverflowError):  # the last: before the year 1
        return None


def as_url(proxy: str) -> str:
    """Return the address as gRPC reads it: characters that would end a URL's host are encoded."""
    credentials, at, gate = proxy.rpartition("@")
    return f"http://{quote(credentials, safe=':%')}{at}{gate}"
