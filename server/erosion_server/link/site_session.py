"""One site's stream: requests go out by it, and replies are put together from it.

All methods are for the link's event loop. What a site sends is held against what it was asked;
what no honest site sends ends the stream (ProtocolFault), and touches no other site's.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from cryptography import x509
from flwr.app import Error

from erosion_common.protocol import envelope, frames
from erosion_common.protocol.flower import ReplyMessage
from erosion_common.protocol.frames import Kind, ProtocolFault, Reason
from erosion_server.link.channel import OpenRequests, Pending, Request
from erosion_server.link.spool import TransferThrottle

TICK_SECONDS = 1.0
PING_TICKS = 5  # in which nothing was heard of a site, or nothing said to it
SILENT_TICKS = 25  # in which nothing was heard of a site, until it is given up
PROBE_SECONDS = 5.0  # for an answer, where a second connection with a site's key comes
FRAMES_PER_TICK, MOST_FRAMES = 50, 500  # other than data and replies that were asked for
FRAME_BYTES = 2**16  # of a head, each counts as a frame: reading one of 4 MiB takes a while
LARGE_BYTES = 2**20  # a transfer from here on takes its turn where memory is short

_PING = frames.frame(Kind.PING)
Write = Callable[[bytes], Awaitable[None]]
Read = Callable[[], Awaitable[bytes | None]]


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end."""

    node_id: int
    hospital: str | None  # by its certificate; None on a link without TLS
    certificate: x509.Certificate | None
    origin: str  # gRPC's name of its address


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a stream was ended from this side."""

    reason: Reason
    text: str


class SiteSession:
    """From a site's greeting to the end of its stream."""

    def __init__(
        self, peer: Peer, number: int, exchange: OpenRequests, throttle: TransferThrottle
    ) -> None:
        """`number`: how often this node has connected. `throttle`: of large transfers."""
        self.peer, self.number = peer, number
        self.over = asyncio.Event()
        self.ending: Ending | None = None
        self._exchange, self._throttle = exchange, throttle
        self._to_disk = False  # the reply under way
        self._waiting: deque[Request] = deque()
        self._control: deque[bytes] = deque()
        self._wake = asyncio.Event()
        self._sending: str | None = None  # the request under way
        self._frame_size = envelope.FrameSize()
        self._arriving: envelope.Assembly | None = None
        self._answers: Pending | None = None  # what the reply under way answers; None: nobody waits
        self._heard = asyncio.Event()
        self.is_heard = True  # since it was probed; for other threads to look at
        self.num_decisions, self._wants_questions = 0, False  # by people at the site
        self._silent_ticks, self._unsaid_ticks, self._is_reading = 0, 0, True
        self._frames_left = MOST_FRAMES
        self._most_head_bytes = (
            frames.LARGEST_GREETING_BYTES
        )  # of a reply to any of what it was asked

    def ask(self, request: Request) -> None:
        """Send a request when the link is free."""
        self._most_head_bytes = max(self._most_head_bytes, request.most_head_bytes)
        self._waiting.append(request)
        self._wake.set()

    def drop(self, request_id: str) -> None:
        """Withdraw a request."""
        if self._arriving is not None and self._arriving.head["re"] == request_id:
            self._answers = None
            self._arriving.let_go()
        for request in list(self._waiting):
            if request.request_id == request_id:
                self._waiting.remove(request)
                return  # the site never heard of it
        if self._sending == request_id:
            self._sending = None
        else:
            self._say(frames.frame(Kind.DROP, request_id.encode()))

    def end(self, reason: Reason, text: str) -> None:
        """End the stream from this side."""
        if self.ending is None:
            self.ending = Ending(reason, text)
        self.over.set()

    def tick(self) -> None:
        """A second has passed in which this program ran: time that it slept does not count."""
        self._frames_left = min(MOST_FRAMES, self._frames_left + FRAMES_PER_TICK)
        self._unsaid_ticks += 1
        if self._wants_questions:  # once in a tick, however often it says so
            self.num_decisions, self._wants_questions = self.num_decisions + 1, False
            self._exchange.wake()
        # A site that sends for minutes has to hear of us, too, or it gives this link up.
        is_due = self._unsaid_ticks % PING_TICKS == 0
        if self._is_reading:
            self._silent_ticks += 1
            patience = 1 if self._arriving is None else frames.ARRIVING_PATIENCE
            if self._silent_ticks >= patience * SILENT_TICKS:
                self.end(Reason.SILENT, "nothing was heard of the site")
                return
            is_due = is_due or self._silent_ticks % PING_TICKS == 0
        if is_due and _PING not in self._control:
            self._say(_PING)

    def probe(self) -> None:
        """Ask the site whether it lives; `is_heard` says so once it has answered."""
        self.is_heard = False
        self._say(_PING)

    async def answers(self) -> bool:
        """Ask the site whether it lives, and wait a moment for its answer."""
        self._heard.clear()
        self._say(_PING)
        try:
            await asyncio.wait_for(self._heard.wait(), PROBE_SECONDS)
        except TimeoutError:
            return False
        return not self.over.is_set()

    async def write_all(self, write: Write) -> None:
        """Send all that is waiting, for as long as the stream stands."""

        async def say(each: bytes) -> None:
            await write(each)
            self._unsaid_ticks = 0

        while True:
            await self._say_all(say)
            if self._waiting:
                await self._send(self._waiting.popleft(), say)
                continue
            self._wake.clear()
            if not self._control:
                await self._wake.wait()

    async def read_all(self, read: Read) -> None:
        """Take in what comes, to the stream's end. Raises ProtocolFault."""
        try:
            while (received := await read()) is not None:
                self._silent_ticks = 0
                self._heard.set()
                self.is_heard = True
                await self._take(received)
        finally:
            await self._throttle.leave(self)

    def _say(self, control: bytes) -> None:
        self._control.append(control)
        self._wake.set()

    async def _say_all(self, write: Write) -> None:
        while self._control:
            await write(self._control.popleft())

    async def _send(self, request: Request, write: Write) -> None:
        self._sending = request.request_id
        is_throttled = request.spool is not None and request.num_bytes >= LARGE_BYTES
        try:
            if is_throttled:
                await self._saying(self._throttle.enter(request), write)
            await write(request.head)
            for data in envelope.data_frames(request.buffers, self._frame_size):
                if self._sending is None:
                    await write(frames.frame(Kind.CUT))
                    return
                await self._say_all(write)
                begun = time.monotonic()
                await write(data)
                self._frame_size.took(time.monotonic() - begun)
            if self._sending is None:  # dropped while its last frame was on its way
                self._say(frames.frame(Kind.DROP, request.request_id.encode()))
        finally:
            self._sending = None
            if is_throttled:
                await self._throttle.leave(request)

    async def _saying(self, turn: Coroutine[Any, Any, None], write: Write) -> None:
        """Wait for `turn`; what is short is said meanwhile."""
        waiting = asyncio.ensure_future(turn)
        waiting.add_done_callback(lambda _: self._wake.set())
        try:
            while not waiting.done():
                self._wake.clear()
                await self._say_all(write)
                await self._wake.wait()
        finally:
            waiting.cancel()
        await waiting

    async def _take(self, received: bytes) -> None:
        kind, body = frames.opened(received)
        if kind is Kind.DATA:
            await self._take_data(body)
            return
        self._frames_left -= _frames_in(len(body))
        if self._frames_left < 0:
            raise ProtocolFault("more frames in a second than any site has use for")
        match kind:
            case Kind.MESSAGE:
                await self._begin(body)
            case Kind.CUT:
                await self._throttle.leave(self)
                self._arriving = None
            case Kind.PING:
                if len(self._control) < MOST_FRAMES:
                    self._say(frames.frame(Kind.PONG))
            case Kind.PONG:
                pass
            case Kind.AGAIN:
                self._wants_questions = True
            case _:
                raise ProtocolFault(f"a {kind.name} frame, which a site does not send")

    async def _begin(self, body: memoryview) -> None:
        """A reply's head: nothing is taken in that was not asked for."""
        if self._arriving is not None:
            raise ProtocolFault("a reply within a reply")
        head = frames.json_body(body, most_bytes=self._most_head_bytes)
        request_id = frames.text_in(head, "re")
        asked, is_wanted = self._exchange.expects(request_id, self.peer.node_id, self.number)
        if asked is None:
            raise ProtocolFault("a reply to what it was not asked")
        records, description = head.pop("records", None), envelope.ContentDescription({})
        if "error" not in head:
            description = envelope.read_description(records)
        if description.num_bytes > asked.most_bytes:
            raise ProtocolFault(
                f"a reply of {description.num_bytes} bytes, where {asked.most_bytes} are the most"
                " that any can need"
            )
        self._answers = asked if is_wanted else None
        space: envelope.Space = envelope.Nowhere()
        is_large = description.num_bytes >= LARGE_BYTES
        spool = asked.mailbox.spool if is_wanted and is_large else None
        if spool is not None:
            await self._enter()
            try:
                space = spool.space()
            except OSError as problem:
                raise self._full(request_id, problem) from None
        elif is_wanted:
            space = envelope.MemorySpace(description.num_bytes)
        self._to_disk = spool is not None
        head["bytes"] = len(body) + description.num_bytes
        self._arriving = envelope.Assembly(head, description, space)
        if self._arriving.is_whole:
            await self._finish(self._arriving)

    def _full(self, request_id: str, problem: OSError) -> ProtocolFault:
        self._exchange.fail(request_id, problem)
        return ProtocolFault("the coordinator's disk does not take the reply in")

    async def _take_data(self, body: memoryview) -> None:
        arriving = self._arriving
        if arriving is None:
            raise ProtocolFault("data of no message")
        try:
            if self._to_disk:
                await asyncio.get_running_loop().run_in_executor(None, arriving.take, body)
            else:
                arriving.take(body)
            if arriving.is_whole:
                await self._finish(arriving)
                return
        except OSError as problem:
            raise self._full(frames.text_in(arriving.head, "re"), problem) from None
        if len(body) < frames.SMALLEST_DATA_BYTES:
            raise ProtocolFault("a message in tiny pieces")

    async def _finish(self, arrived: envelope.Assembly) -> None:
        await self._throttle.leave(self)
        # Rounds may be so short that there are hundreds in a second.
        self._frames_left += _frames_in(arrived.head["bytes"] - arrived.num_bytes)
        asked, self._answers, self._arriving = self._answers, None, None
        if asked is None:
            return
        head = arrived.head
        content = _error(head["error"]) if "error" in head else arrived.content()
        reply = ReplyMessage(
            content,
            asked.envelope,
            received_bytes=head["bytes"],
            log_head=frames.text_in(head, "log"),
        )
        self._exchange.deliver(frames.text_in(head, "re"), reply)

    async def _enter(self) -> None:
        self._is_reading = False  # it is kept waiting: its silence says nothing
        try:
            await self._throttle.enter(self)
        finally:
            self._is_reading = True


def _frames_in(num_bytes: int) -> int:
    return 1 + num_bytes // FRAME_BYTES


def _error(described: Any) -> Error:
    match described:
        case {"code": int(code), "reason": str(reason)}:
            return Error(code if abs(code) < 2**31 else 0, reason[: frames.LONGEST_REASON])
        case _:
            raise ProtocolFault("an error without its code and its reason")
