"""A site's connection to the SuperLink: Flower's SuperNode, without a code bundle or polling.

The only module of this side that uses Flower's private names. It speaks Flower's Fleet API by its
generated stubs, so a stock SuperLink understands it too. Every call has a deadline.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self

import grpc
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message
from flwr.app.message.message import remove_content_from_message
from flwr.client.grpc_rere_client.node_auth_client_interceptor import NodeAuthClientInterceptor
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
)
from flwr.proto.fleet_pb2_grpc import FleetStub
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ObjectTree,
    PullObjectRequest,
    PushObjectRequest,
)
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from erosion.common.protocol import admission_terms
from erosion.common.protocol.flower_arrays import inflate, travels_inline
from erosion.common.support.expiry import precise_now

logger = logging.getLogger("erosion.line")

HEARTBEAT_SECONDS = 10.0  # Flower's smallest; a site counts as gone after two silent intervals
CALL_SECONDS = 30.0  # deadline of a small call
POLL_SECONDS = 45.0  # deadline of a pull that the coordinator may hold open
OBJECT_SECONDS = 300.0  # deadline of one 5 MiB object, on a slow line
IN_FLIGHT = 2  # objects under way at once: enough to hide latency, few enough to bound memory
MAX_RPC_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class FleetReply:
    """What the coordinator said at the door."""

    problem: grpc.RpcError | None  # why the key is not let in; None: it would be
    hospital: str | None = None  # whose key it is; None where the coordinator enrols nobody
    expires: datetime | None = None  # when the key ends
    certificate_expires: datetime | None = None  # the coordinator's
    ahead: timedelta | None = None  # by how much this machine's clock is; None: it did not say
    uncertain: timedelta = timedelta(0)  # the time that the question took, halved


class FleetConnection:
    """One site's authenticated connection. Raises grpc.RpcError; the agent decides what to do."""

    def __init__(
        self,
        address: str,
        *,
        root_certificate: bytes | None = None,
        private_key: ec.EllipticCurvePrivateKey | None = None,
    ) -> None:
        """`root_certificate` is in PEM; without it the line is not encrypted.

        Without a key one is made up, by which no coordinator but a local one lets a site in.
        """
        self._enrolled = private_key is not None
        # P-256 signs and verifies several times faster than P-384, and every call is signed.
        key = private_key or ec.generate_private_key(ec.SECP256R1())
        self._public_key = public_key_to_bytes(key.public_key())
        options = [
            ("grpc.max_send_message_length", MAX_RPC_BYTES),
            ("grpc.max_receive_message_length", MAX_RPC_BYTES),
            ("grpc.keepalive_time_ms", 20_000),  # notices a cut line by its silence
            ("grpc.keepalive_timeout_ms", 10_000),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.initial_reconnect_backoff_ms", 200),
            ("grpc.max_reconnect_backoff_ms", 2_000),
        ]
        if root_certificate is None:
            channel = grpc.insecure_channel(address, options=options)
        else:
            credentials = grpc.ssl_channel_credentials(root_certificate)
            channel = grpc.secure_channel(address, credentials, options=options)
        self._channel = grpc.intercept_channel(
            channel, NodeAuthClientInterceptor(key, key.public_key())
        )
        self._stub = FleetStub(self._channel)
        self._node: Node | None = None
        self._confirmation: Any = None
        self.key_expires: datetime | None = None  # known once signed in, where keys are enrolled

    def __enter__(self) -> Self:
        """Sign in."""
        try:
            if not self._enrolled:
                self._stub.RegisterNode(
                    RegisterNodeFleetRequest(public_key=self._public_key), timeout=CALL_SECONDS
                )
            reply, call = self._stub.ActivateNode.with_call(
                ActivateNodeRequest(
                    public_key=self._public_key, heartbeat_interval=HEARTBEAT_SECONDS
                ),
                timeout=CALL_SECONDS,
            )
        except BaseException:  # with a failed `__enter__`, `__exit__` is not called
            self._channel.close()
            raise
        self._node = Node(node_id=reply.node_id)
        self.key_expires = _time_in(call, admission_terms.EXPIRES)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Sign out if the line still stands."""
        try:
            if self._node is not None:
                self._stub.DeactivateNode(
                    DeactivateNodeRequest(node_id=self._node.node_id), timeout=2.0
                )
        except grpc.RpcError:
            pass  # gone already; the coordinator notices
        finally:
            self._channel.close()

    def knock(self, *, seconds: float) -> FleetReply:
        """Ask whether this key is let in, without signing in; the channel is closed after that.

        The question is a heartbeat of no node: a coordinator checks the signature and the key
        before it looks at the node.
        """
        asked = precise_now()
        try:
            request = SendNodeHeartbeatRequest(node=Node(node_id=0), heartbeat_interval=10.0)
            call = self._stub.SendNodeHeartbeat.future(request, timeout=seconds)
            problem = call.exception()
            answered = precise_now()
            theirs = _time_in(call, admission_terms.TIME)
            return FleetReply(
                None if problem and problem.details() == "Invalid node ID" else problem,
                dict(call.trailing_metadata() or ()).get(admission_terms.HOSPITAL),
                _time_in(call, admission_terms.EXPIRES),
                _time_in(call, admission_terms.CERTIFICATE),
                None if theirs is None else asked + (answered - asked) / 2 - theirs,
                (answered - asked) / 2,
            )
        finally:
            self._channel.close()

    def heartbeat(self) -> bool:
        """Say that this site lives; False where the coordinator does not know it any more."""
        request = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=HEARTBEAT_SECONDS)
        return bool(self._stub.SendNodeHeartbeat(request, timeout=CALL_SECONDS).success)

    def receive(self) -> Message | None:
        """Wait for the next request, a while at most."""
        reply = self._stub.PullMessages(PullMessagesRequest(node=self._node), timeout=POLL_SECONDS)
        if not reply.messages_list:
            return None
        envelope = message_from_proto(reply.messages_list[0])
        if envelope.content:
            return envelope  # small enough to come with the call
        run_id = envelope.metadata.run_id
        root = reply.message_object_trees[0].object_id
        wanted = list(
            dict.fromkeys(t.object_id for t in iterate_object_tree(reply.message_object_trees[0]))
        )
        pulled = self._in_flight(
            self._stub.PullObject,
            (PullObjectRequest(node=self._node, run_id=run_id, object_id=i) for i in wanted),
        )
        contents = {
            object_id: answer.object_content
            for object_id, answer in zip(wanted, pulled, strict=True)
            if answer.object_available
        }
        if len(contents) < len(wanted):  # the round ended while this site was downloading
            return None
        confirmation = ConfirmMessageReceivedRequest(
            node=self._node, run_id=run_id, message_object_id=root
        )
        # Nobody waits for the answer: it only lets the coordinator free the objects sooner. It is
        # held on to because gRPC cancels a call that is let go of.
        self._confirmation = self._stub.ConfirmMessageReceived.future(
            confirmation, timeout=CALL_SECONDS
        )
        try:
            message = inflate(root, contents)
        except Exception as problem:  # noqa: BLE001 - a request that is nonsense must not end a site
            logger.warning(
                "a request that cannot be read (%s) is left alone", type(problem).__name__
            )
            return None
        if not isinstance(message, Message):
            return None
        message.metadata.__dict__["_message_id"] = root
        return message

    def reply(self, message: Message) -> None:
        """Send a reply. One that comes too late is dropped by the coordinator, without an error."""
        run_id = message.metadata.run_id
        with no_object_id_recompute():
            message.metadata.__dict__["_message_id"] = message.object_id
            inline = travels_inline(message)
            tree = ObjectTree(object_id=message.object_id) if inline else get_object_tree(message)
            sent = message if inline else remove_content_from_message(message)
            answer = self._stub.PushMessages(
                PushMessagesRequest(
                    node=self._node,
                    messages_list=[message_to_proto(sent)],
                    message_object_trees=[tree],
                    clientapp_runtime_list=[0.0],
                ),
                timeout=CALL_SECONDS,
            )
            wanted = set(answer.objects_to_push)
            parts = get_all_nested_objects(message)
            self._in_flight(
                self._stub.PushObject,
                (
                    PushObjectRequest(
                        node=self._node,
                        run_id=run_id,
                        object_id=object_id,
                        object_content=part.deflate(),
                    )
                    for object_id, part in parts.items()
                    if object_id in wanted
                ),
            )

    @staticmethod
    def _in_flight(call: Callable[..., Any], requests: Iterable[Any]) -> list[Any]:
        """Make calls with a few under way at once; answers in the order of the requests."""
        answers: list[Any] = []
        pending: deque[Any] = deque()
        for request in requests:
            if len(pending) == IN_FLIGHT:
                answers.append(pending.popleft().result())
            pending.append(call.future(request, timeout=OBJECT_SECONDS))  # type: ignore[attr-defined]
        answers.extend(future.result() for future in pending)
        return answers


def _time_in(call: grpc.Call, name: str) -> datetime | None:
    """A time that the coordinator said with its answer; None where it did not, or not clearly."""
    try:
        return datetime.fromisoformat(dict(call.trailing_metadata() or ())[name])
    except (KeyError, ValueError, TypeError):
        return None
