"""Flower's SuperLink inside the coordinator's process, and the Grid that the strategy talks to.

The only module of this side that uses Flower's private names. Two things differ from the stock
`flower-superlink`, and sites need not know of either: a site's `PullMessages` is answered when
there is a message for it (or after a while) instead of at once, so nobody polls; and where that
waiting call breaks off, the site is known to be gone without waiting for a heartbeat to lapse.
There is no Control API, no ServerAppIo API, and no code bundle for sites to run.

Every call is held against the enrolment, beside Flower's own check of its signature, so that a key
that was revoked or has expired is out at once.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
from flwr.app import Error, Message, RecordDict
from flwr.app.message.message import remove_content_from_message
from flwr.common.constant import (
    NOOP_ACCOUNT_NAME,
    NOOP_FLWR_AID,
    PUBLIC_KEY_HEADER,
    SUPERLINK_NODE_ID,
    TIMESTAMP_HEADER,
    ErrorCode,
    SubStatus,
)
from flwr.common.serde import message_from_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    ActivateNodeResponse,
    DeactivateNodeRequest,
    DeactivateNodeResponse,
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
)
from flwr.proto.fleet_pb2_grpc import add_FleetServicer_to_server
from flwr.proto.message_pb2 import ObjectTree, PushObjectRequest, PushObjectResponse
from flwr.server.superlink.fleet.grpc_rere.fleet_servicer import FleetServicer
from flwr.server.superlink.fleet.grpc_rere.node_auth_server_interceptor import (
    NodeAuthServerInterceptor,
)
from flwr.server.superlink.linkstate import LinkState, LinkStateFactory
from flwr.serverapp.grid import Grid
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION, TaskType
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.object_store import ObjectStore, ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.superlink.federation import NoOpFederationManager
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from common.door import Reason
from common.errors import LinkError
from common.flower_arrays import RECEIVED_BYTES, inflate, travels_inline
from server import door_words
from server.admission import Admission, Admitted, KeptOut
from server.door_words import refusal, refuse, say
from server.doorkeeper import Doorkeeper, TurnedAway
from server.reply_tree import Allowance, problem_with
from server.serving_certificate import ServingCertificate

LONGEST_WAIT_SECONDS = 15.0  # of an unanswered PullMessages; below common proxies' idle limits
LONGEST_ROUND_SECONDS = 86_400.0  # where no timeout is given
MAX_RPC_BYTES = 64 * 2**20  # arrays travel in chunks of 5 MiB, so no honest call comes near
# Without a call, after which a site that signs in anew is let in; a heartbeat comes every 8 s.
SILENT_SECONDS = 10.0
WORKERS = 512  # threads; each connected site holds one while it waits


@dataclass
class _Desk:
    """Where the gRPC threads and the strategy's thread leave each other notes."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    news: threading.Event = field(default_factory=threading.Event)  # for the strategy's thread
    allowance: Allowance = field(default_factory=Allowance)
    _bells: dict[int, threading.Event] = field(default_factory=dict)
    _announced: dict[str, ObjectTree] = field(
        default_factory=dict
    )  # request -> its reply's objects
    _inline: dict[str, Message] = field(default_factory=dict)  # request -> its reply, if small
    _sessions: dict[int, int] = field(default_factory=dict)
    _standing: dict[int, int] = field(default_factory=dict)  # calls under way, by node
    _last_call: dict[int, float] = field(default_factory=dict)  # when one ended

    def session(self, node_id: int) -> int:
        """How often this node has signed in: a site that came back has forgotten its requests."""
        with self.lock:
            return self._sessions.get(node_id, 0)

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

    def announce(self, request_id: str, reply: ObjectTree) -> None:
        """A reply has begun to arrive."""
        with self.lock:
            self._announced[request_id] = reply

    def deliver(self, request_id: str, reply: Message) -> None:
        """A reply has come, whole."""
        with self.lock:
            self._inline[request_id] = reply

    def delivered(self, request_id: str) -> Message | None:
        """A whole reply, once."""
        with self.lock:
            return self._inline.pop(request_id, None)

    def announced(self) -> dict[str, ObjectTree]:
        """Replies that have begun to arrive and were not taken yet, by request."""
        with self.lock:
            return dict(self._announced)

    def take(self, request_id: str) -> ObjectTree | None:
        """Strike a reply off the list."""
        with self.lock:
            return self._announced.pop(request_id, None)


class _Fleet(FleetServicer):
    """The Fleet API, where a pull waits for a message instead of coming back empty-handed."""

    def __init__(
        self,
        states: LinkStateFactory,
        stores: ObjectStoreFactory,
        desk: _Desk,
        *,
        enrolled_only: bool,
    ) -> None:
        super().__init__(states, stores, enrolled_only)
        self._desk = desk

    def ActivateNode(  # noqa: N802
        self, request: ActivateNodeRequest, context: grpc.ServicerContext
    ) -> ActivateNodeResponse:
        """A site came, or came back: where its earlier session is silent, that one has died."""
        state = self.state_factory.state()
        known = state.get_node_id_by_public_key(request.public_key)
        if known is not None and self._desk.is_silent(known):
            self._desk.end_session(known, state)
        response: ActivateNodeResponse = super().ActivateNode(request, context)
        self._desk.begin_session(response.node_id)
        self._desk.news.set()
        return response

    def DeactivateNode(  # noqa: N802
        self, request: DeactivateNodeRequest, context: grpc.ServicerContext
    ) -> DeactivateNodeResponse:
        """A site says goodbye."""
        response = super().DeactivateNode(request, context)
        self._desk.news.set()
        return response

    def PullMessages(  # noqa: N802
        self, request: PullMessagesRequest, context: grpc.ServicerContext
    ) -> PullMessagesResponse:
        """Wait for a message to this site, and know by a broken wait that the site is gone."""
        node_id = request.node.node_id
        bell, session = self._desk.bell(node_id), self._desk.session(node_id)
        answered = threading.Event()

        def on_end() -> None:
            # A line that was cut may be noticed only after the site has come back on another.
            if not answered.is_set() and self._desk.session(node_id) == session:
                self.state_factory.state().deactivate_node(node_id)
                self._desk.news.set()
            bell.set()

        deadline = time.monotonic() + LONGEST_WAIT_SECONDS
        waiting = context.add_callback(on_end)
        while waiting and context.is_active():
            bell.clear()
            response: PullMessagesResponse = super().PullMessages(request, context)
            left = deadline - time.monotonic()
            ended = self._desk.session(node_id) != session  # it signed in anew, or was shown out
            if response.messages_list or left <= 0 or ended:
                answered.set()
                return response
            bell.wait(left)
        return PullMessagesResponse()

    def PushMessages(  # noqa: N802
        self, request: PushMessagesRequest, context: grpc.ServicerContext
    ) -> PushMessagesResponse:
        """A reply begins to arrive: its envelope, and the list of its objects."""
        if (problem := problem_with(request)) is not None:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, problem)
        if request.messages_list[0].metadata.src_node_id != request.node.node_id:
            refuse(context, Reason.SIGNATURE, "it replied in another site's name")
        response: PushMessagesResponse = super().PushMessages(request, context)
        reply = request.message_object_trees[0]
        if "None" in response.results:  # too late, or a second reply: keep nothing of it
            self.objectstore_factory.store().delete(reply.object_id)
            response.objects_to_push[:] = []
            return response
        envelope = request.messages_list[0]
        whole = message_from_proto(envelope)
        if whole.has_error() or whole.content:
            whole.__dict__[RECEIVED_BYTES] = request.ByteSize()
            response.objects_to_push[:] = []
            self.objectstore_factory.store().delete(reply.object_id)
            self._desk.deliver(envelope.metadata.reply_to_message_id, whole)
        else:
            self._desk.announce(envelope.metadata.reply_to_message_id, reply)
        self._desk.news.set()
        return response

    def PushObject(  # noqa: N802
        self, request: PushObjectRequest, context: grpc.ServicerContext
    ) -> PushObjectResponse:
        """One object of a reply arrives."""
        if not self._desk.allowance.spend(request.node.node_id, len(request.object_content)):
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "more than any reply can need")
        response = super().PushObject(request, context)
        self._desk.news.set()
        return response


class _Door(NodeAuthServerInterceptor):
    """Flower's check of every call's signature, then ours of the key behind it."""

    def __init__(
        self,
        states: LinkStateFactory,
        desk: _Desk,
        keeper: Doorkeeper,
        certificate: ServingCertificate | None,
    ) -> None:
        super().__init__(states)
        self._desk, self._keeper, self._certificate = desk, keeper, certificate

    def intercept_service(
        self,
        continuation: Callable[[Any], Any],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        """Attend to the call, and tell of it if it is turned away."""
        said = {pair[0]: pair[1] for pair in handler_call_details.invocation_metadata or ()}
        public_key, site_time = said.get(PUBLIC_KEY_HEADER, b""), said.get(TIMESTAMP_HEADER, "")
        try:
            handler = super().intercept_service(continuation, handler_call_details)
        except Exception:  # noqa: BLE001 - a key or a time that a stranger made up
            handler = refusal(Reason.SIGNATURE, "its key or its time cannot be read")
        if handler is None or handler.unary_unary is None:
            return None  # no such method; a health watch, which strangers could keep open, neither

        def attend(request: Any, context: grpc.ServicerContext) -> Any:
            self._keeper.call(context.peer())
            say(context)
            try:
                return handler.unary_unary(request, context)
            except Exception:
                self._tell(context, public_key, site_time)
                raise

        return grpc.unary_unary_rpc_method_handler(
            attend, handler.request_deserializer, handler.response_serializer
        )

    def _wrap_method_handler(
        self, method_handler: grpc.RpcMethodHandler, received_public_key: bytes
    ) -> grpc.RpcMethodHandler:
        """Called once the signature is known to be this key's; the node id is looked at after."""
        verdict = self._keeper.verdict(received_public_key)
        if isinstance(verdict, KeptOut):
            self._show_out(received_public_key)
            return refusal(verdict.reason, verdict.text, verdict.hospital)
        if verdict is not None:
            self._make_known(received_public_key)

        def act(request: Any, context: grpc.ServicerContext) -> Any:
            if not hasattr(request, "node"):
                return method_handler.unary_unary(request, context)
            with self._desk.calling(request.node.node_id):  # by now known to be this key's
                return method_handler.unary_unary(request, context)

        acting = grpc.unary_unary_rpc_method_handler(
            act, method_handler.request_deserializer, method_handler.response_serializer
        )
        handler = super()._wrap_method_handler(acting, received_public_key)

        def serve(request: Any, context: grpc.ServicerContext) -> Any:
            expires = self._certificate.expires if self._certificate else None
            say(context, verdict, certificate_expires=expires)
            claimed = getattr(request, "public_key", received_public_key)
            if claimed != received_public_key:  # Flower would sign the other site in
                text = "it signed in with another site's public key"
                refuse(context, Reason.SIGNATURE, text, verdict.hospital if verdict else None)
            return handler.unary_unary(request, context)

        return grpc.unary_unary_rpc_method_handler(
            serve, handler.request_deserializer, handler.response_serializer
        )

    def _make_known(self, public_key: bytes) -> None:
        state = self.state_factory.state()
        if state.get_node_id_by_public_key(public_key) is None:
            with contextlib.suppress(ValueError):  # two calls at once
                state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, public_key, 0)

    def _show_out(self, public_key: bytes) -> None:
        """End the presence of a site that was let in earlier, so that no round waits for it."""
        state = self.state_factory.state()
        node_id = state.get_node_id_by_public_key(public_key)
        if node_id is not None:
            self._desk.end_session(node_id, state)

    def _tell(self, context: grpc.ServicerContext, public_key: bytes, site_time: str) -> None:
        """Put a refusal into words, and on record."""
        reason = door_words.refused_for(context)
        if reason is None:
            return  # a call of a session that has ended, say; nobody is kept out
        hospital = door_words.hospital_in(context)
        if reason is Reason.CLOCK:  # refused before the key was looked up, but rightly signed
            verdict = self._keeper.verdict(public_key)
            hospital = verdict.hospital if verdict is not None else None
        text = door_words.put_into_words(context, reason, site_time)
        self._keeper.keep_out(hospital, context.peer(), reason, text)


class LinkGrid(Grid):
    """Flower's Grid on the SuperLink of this very process: messages are handed over, not sent."""

    def __init__(self, state: LinkState, store: ObjectStore, desk: _Desk) -> None:
        self._state, self._store, self._desk = state, store, desk
        self._run: Run | None = None
        self._asked: dict[str, Message] = {}  # without content, for error replies
        self._asked_in: dict[str, int] = {}  # request -> the session that the site was in

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
        return {message.metadata.dst_node_id for message in list(self._asked.values())}

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
                contents = (self._store.get(i.object_id) for i in iterate_object_tree(tree))
                self._desk.allowance.grant(node_id, sum(len(c) for c in contents if c))
                stored = message if inline else envelope
                if self._state.store_message_ins(stored) is None:
                    self._store.delete(tree.object_id)
                    continue
                pushed.append(tree.object_id)
                self._asked[tree.object_id] = envelope
                self._asked_in[tree.object_id] = self._desk.session(node_id)
                self._desk.bell(node_id).set()
        return pushed

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Complete replies to `message_ids`, and an error for each site that left."""
        announced = self._desk.announced()
        sessions = self.sessions()
        replies: list[Message] = []
        for request_id in message_ids:
            asked = self._asked.get(request_id)
            if asked is None:
                continue
            tree = announced.get(request_id)
            if (whole := self._desk.delivered(request_id)) is not None:
                replies.append(self._from(asked, whole))
                self.forget([request_id])
            elif tree is not None and (contents := self._complete(tree)) is not None:
                replies.append(self._inflate(asked, tree, contents))
                self.forget([request_id])
            elif sessions.get(asked.metadata.dst_node_id) != self._asked_in[request_id]:
                error = Error(ErrorCode.NODE_UNAVAILABLE, "the site left or lost its connection")
                replies.append(Message(error, reply_to=asked))
                self.forget([request_id])
        return replies

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Ask sites; what came back within `timeout` seconds. Later replies are dropped."""
        waiting = set(self.push_messages(messages))
        deadline = time.monotonic() + (timeout if timeout is not None else LONGEST_ROUND_SECONDS)
        replies: list[Message] = []
        while waiting:
            self._desk.news.clear()
            for reply in self.pull_messages(waiting):
                replies.append(reply)
                waiting.discard(reply.metadata.reply_to_message_id)
            left = deadline - time.monotonic()
            if left <= 0:
                break
            if waiting:
                self._desk.news.wait(min(left, 1.0))  # wake to see heartbeats that lapsed
        self.forget(waiting)
        return replies

    def wait_for_news(self, seconds: float) -> None:
        """Return when a site comes, goes or answers, or after `seconds`."""
        self._desk.news.wait(seconds)
        self._desk.news.clear()

    def forget(self, message_ids: Iterable[str]) -> None:
        """Drop requests and whatever arrived or will arrive in reply to them."""
        for request_id in list(message_ids):
            self._asked.pop(request_id, None)
            self._asked_in.pop(request_id, None)
            self._state.delete_messages({request_id})
            self._store.delete(request_id)
            self._desk.delivered(request_id)
            if (reply := self._desk.take(request_id)) is not None:
                self._store.delete(reply.object_id)

    def _complete(self, tree: ObjectTree) -> dict[str, bytes] | None:
        contents: dict[str, bytes] = {}
        for part in iterate_object_tree(tree):
            content = self._store.get(part.object_id)
            if not content:
                return None
            contents[part.object_id] = content
        return contents

    def _inflate(self, asked: Message, tree: ObjectTree, contents: dict[str, bytes]) -> Message:
        """The reply, or an error in its place if its objects make no sense."""
        received_bytes = sum(map(len, contents.values()))
        try:
            reply = inflate(tree.object_id, contents)
            if not isinstance(reply, Message):
                raise TypeError(f"a {type(reply).__name__} instead of a message")
        except Exception as problem:  # noqa: BLE001 - whatever a site sent, only that site pays
            reason = f"a reply that cannot be read ({type(problem).__name__})"
            reply = Message(Error(ErrorCode.MESSAGE_UNAVAILABLE, reason), reply_to=asked)
        reply.__dict__[RECEIVED_BYTES] = received_bytes
        return self._from(asked, reply)

    @staticmethod
    def _from(asked: Message, reply: Message) -> Message:
        """The reply as the answer to `asked`, whatever its envelope claims.

        The sender was authenticated for this request, so the request says who it is.
        """
        reply.metadata.__dict__["_reply_to_message_id"] = asked.metadata.message_id
        reply.metadata.__dict__["_src_node_id"] = asked.metadata.dst_node_id
        return reply


class Link:
    """The SuperLink: `start` it, talk through `grid`, and `stop` it. Also a context manager."""

    def __init__(
        self,
        address: str,
        *,
        certificate: ServingCertificate | None = None,
        admission: Admission | None = None,
    ) -> None:
        """Listen on `address` ("host:port").

        `certificate`: what sites are shown, None for plain gRPC. `admission`: whom to let in, None
        for everybody.
        """
        desk = _Desk()
        self._desk, self._keeper = desk, Doorkeeper(admission)
        stores = ObjectStoreFactory(FLWR_IN_MEMORY_DB_NAME)
        states = LinkStateFactory(FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), stores)
        self._state = states.state()
        self._asked_address = address
        self._server = grpc.server(
            ThreadPoolExecutor(WORKERS, thread_name_prefix="fleet"),
            interceptors=[_Door(states, desk, self._keeper, certificate)],
            options=[
                ("grpc.max_send_message_length", MAX_RPC_BYTES),
                ("grpc.max_receive_message_length", MAX_RPC_BYTES),
                ("grpc.max_concurrent_streams", WORKERS),
                ("grpc.so_reuseport", 0),  # else a second coordinator would share the port
                (
                    "grpc.keepalive_time_ms",
                    20_000,
                ),  # a site that vanished is noticed by its silence
                ("grpc.keepalive_timeout_ms", 10_000),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
                ("grpc.http2.max_pings_without_data", 0),
            ],
        )
        fleet = _Fleet(states, stores, desk, enrolled_only=admission is not None)
        add_FleetServicer_to_server(fleet, self._server)
        self._health = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self._certificate = certificate
        self.grid = LinkGrid(self._state, stores.store(), desk)
        self.address = address

    def start(self) -> None:
        """Open the port and the run; raises LinkError where the port cannot be had."""
        try:
            if self._certificate is None:
                port = self._server.add_insecure_port(self._asked_address)
            else:
                credentials = self._certificate.credentials(on_handshake=self._keeper.handshake)
                port = self._server.add_secure_port(self._asked_address, credentials)
        except RuntimeError:
            raise LinkError(
                f"The coordinator cannot listen on {self._asked_address}: the port is in use, or"
                " the address is not this machine's. Stop the other program (`ss -ltnp` names it)"
                " or give another address with --address HOST:PORT."
            ) from None
        self.address = f"{self._asked_address.rpartition(':')[0]}:{port}"
        self._server.start()
        run_id = self._state.create_run(
            fab_id="erosion",
            fab_version="0",
            fab_hash="",  # sites run what they installed; there is no bundle to fetch
            override_config={},
            federation=NOOP_FEDERATION,
            federation_config=None,
            flwr_aid=NOOP_FLWR_AID,
            primary_task_type=TaskType.SERVER_APP,
        )
        run = self._state.get_run_info(run_ids=[run_id])[0]
        task_id = run.primary_task_id
        if task_id is None or not self._state.claim_task(task_id):
            raise LinkError(
                "Flower refused to start a run; is the installed flwr of the 1.32 line?"
            )
        self._state.activate_task(task_id)
        self._task_id = task_id
        self._alive = HeartbeatSender(lambda: self._state.acknowledge_task_heartbeat(task_id))
        self._alive.start()
        self.grid.set_run(run)
        self._health.set("", health_pb2.HealthCheckResponse.SERVING)

    @property
    def enrolled_only(self) -> bool:
        """Whether only sites with an enrolled key are let in."""
        return self._keeper.admission is not None

    def hospital_of(self, node_id: int) -> str | None:
        """Whose key a node signs with; None where the key is not, or no longer, let in."""
        for node in self._state.get_node_info(node_ids=[node_id]):
            verdict = self._keeper.verdict(node.public_key)
            return verdict.hospital if isinstance(verdict, Admitted) else None
        return None

    def why_not(self, hospital: str) -> str | None:
        """Why no site could come in as `hospital` now; None where one could."""
        admission = self._keeper.admission
        return None if admission is None else admission.why_not(hospital)

    def part_with(self, node_id: int) -> None:
        """End the presence of a node whose key is no longer let in, so that it is told."""
        self._desk.end_session(node_id, self._state)

    def turned_away(self) -> list[TurnedAway]:
        """Who was not let in since this was last asked."""
        return self._keeper.news()

    def stop(self, *, completed: bool = True) -> None:
        """End the run and close the port; returns within a few seconds."""
        self._health.enter_graceful_shutdown()
        self._alive.stop()
        self._state.finish_task(
            self._task_id, SubStatus.COMPLETED if completed else SubStatus.FAILED, ""
        )
        self._server.stop(grace=0.5).wait(5)
