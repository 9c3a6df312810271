"""The site agent: stays connected, trains when asked, and comes back after any outage."""

import logging
import queue
import random
import threading
import time
from collections.abc import Callable

import grpc
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from client.fleet import HEARTBEAT_SECONDS, FleetConnection
from common import wire
from common.errors import LinkError

logger = logging.getLogger("erosion.agent")

FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 0.2, 30.0


class Agent:
    """Runs one site's ClientApp for one coordinator, until `stop` is set."""

    def __init__(
        self,
        connect: Callable[[], FleetConnection],
        app: ClientApp,
        *,
        address: str,
        give_up_seconds: float | None = None,
    ) -> None:
        """`give_up_seconds`: end when the coordinator is out of reach for so long; None: never."""
        self._connect, self._app, self._address = connect, app, address
        self._give_up_seconds = give_up_seconds
        self.stop = threading.Event()

    def run(self) -> None:
        """Serve until stopped. Raises LinkError where trying again would be of no use."""
        lost_at = time.monotonic()
        tries = 0
        while not self.stop.is_set():
            try:
                with self._connect() as connection:
                    logger.info("connected to the coordinator at %s", self._address)
                    tries = 0
                    self._serve(connection)
                    return
            except grpc.RpcError as problem:
                if tries == 0:
                    lost_at = time.monotonic()
                    logger.warning("%s; trying again", self._plain_words(problem))
                out_of_reach = time.monotonic() - lost_at
                if self._give_up_seconds is not None and out_of_reach >= self._give_up_seconds:
                    raise LinkError(
                        f"{self._plain_words(problem)}. Gave up after {out_of_reach:.0f} s. Check"
                        " that the coordinator runs and that coordinator.address is right."
                    ) from None
            # Full jitter: after an outage a hundred sites must not all come back at once.
            longest = min(LAST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2**tries)
            self.stop.wait(random.uniform(FIRST_RETRY_SECONDS / 2, longest))
            tries += 1

    def _serve(self, connection: FleetConnection) -> None:
        inbox: queue.SimpleQueue[Message | grpc.RpcError] = queue.SimpleQueue()
        ended = threading.Event()
        for work in (self._receive, self._beat):
            threading.Thread(target=work, args=(connection, inbox, ended), daemon=True).start()
        try:
            while not self.stop.is_set():
                if (message := _newest(inbox)) is None:
                    continue
                self._answer(connection, message)
        finally:
            ended.set()

    def _answer(self, connection: FleetConnection, message: Message) -> None:
        metadata = message.metadata
        if metadata.message_type == wire.NOTICE:
            notice = wire.decode_notice(message.content)
            connection.reply(Message(wire.encode_notice(notice), reply_to=message))
            if notice.final:
                raise LinkError(
                    f"The coordinator at {self._address} turned this site away: {notice.text}"
                )
            logger.info("the coordinator says: %s", notice.text)
            return
        context = Context(metadata.run_id, metadata.dst_node_id, {}, RecordDict(), {})
        started = time.monotonic()
        reply = self._app(message, context)
        logger.debug(
            "%s of round %s took %.3f s",
            metadata.message_type,
            metadata.group_id,
            time.monotonic() - started,
        )
        connection.reply(reply)

    def _receive(
        self,
        connection: FleetConnection,
        inbox: "queue.SimpleQueue[Message | grpc.RpcError]",
        ended: threading.Event,
    ) -> None:
        # Receiving goes on while this site trains: a standing call shows the coordinator that the
        # site lives, and where a round was missed the newest request is at hand at once.
        try:
            while not ended.is_set():
                if (message := connection.receive()) is not None:
                    inbox.put(message)
        except (grpc.RpcError, ValueError) as problem:  # ValueError: the channel was closed
            inbox.put(
                problem if isinstance(problem, grpc.RpcError) else grpc.RpcError(str(problem))
            )

    def _beat(
        self,
        connection: FleetConnection,
        inbox: "queue.SimpleQueue[Message | grpc.RpcError]",
        ended: threading.Event,
    ) -> None:
        try:
            while not ended.wait(HEARTBEAT_SECONDS * 0.8):
                if not connection.heartbeat():
                    inbox.put(grpc.RpcError("the coordinator does not know this site any more"))
                    return
        except (grpc.RpcError, ValueError):
            return  # the receiving thread sees the same outage and reports it

    def _plain_words(self, problem: grpc.RpcError) -> str:
        code = problem.code() if isinstance(problem, grpc.Call) else None
        details = (problem.details() or "") if isinstance(problem, grpc.Call) else str(problem)
        if "handshake" in details.lower() or "certificate" in details.lower():
            return (
                f"The certificate of {self._address} was not accepted: check"
                " coordinator.root_certificate and that the address is the one it was made for"
            )
        if "Invalid timestamp" in details:
            return "This machine's clock differs from the coordinator's; set it (NTP)"
        if "No SuperNode found" in details:
            return "The coordinator does not know this site's key; ask it to enrol the site"
        if "could not be activated" in details:
            return "The coordinator still holds this site's earlier connection; it lapses soon"
        if code == grpc.StatusCode.UNAVAILABLE:
            return f"The coordinator at {self._address} cannot be reached"
        answer = f"{code.name}: {details}" if code else details
        return f"The coordinator at {self._address} answered {answer}"


def _newest(inbox: "queue.SimpleQueue[Message | grpc.RpcError]") -> Message | None:
    """The next request; of several train requests only the newest, the others' rounds are over."""
    try:
        items = [inbox.get(timeout=0.2)]
    except queue.Empty:
        return None
    while not inbox.empty():
        items.append(inbox.get())
    for item in items:
        if isinstance(item, grpc.RpcError):
            raise item
    messages = [item for item in items if isinstance(item, Message)]
    last_train = max(
        (i for i, m in enumerate(messages) if m.metadata.message_type == wire.TRAIN), default=None
    )
    kept = [
        m
        for i, m in enumerate(messages)
        if m.metadata.message_type != wire.TRAIN or i == last_train
    ]
    for later in kept[1:]:
        inbox.put(later)
    return kept[0]
