"""The Fleet API, where a pull waits for a message instead of coming back empty-handed."""

import threading
import time

import grpc
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
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ConfirmMessageReceivedResponse,
    PushObjectRequest,
    PushObjectResponse,
)
from flwr.server.superlink.fleet.grpc_rere.fleet_servicer import FleetServicer
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.object_store import ObjectStoreFactory

from erosion.common.protocol.admission_terms import Reason
from erosion.common.protocol.flower_arrays import RECEIVED_BYTES
from erosion.server.enrolment.rejection_details import refuse
from erosion.server.link.reply_tree import problem_with
from erosion.server.link.sessions import Sessions
from erosion.server.link.transfer_throttle import TransferThrottle

LONGEST_WAIT_SECONDS = 15.0  # of an unanswered PullMessages; below common proxies' idle limits


class Fleet(FleetServicer):
    """The Fleet API, where a pull waits for a message instead of coming back empty-handed."""

    def __init__(
        self,
        states: LinkStateFactory,
        stores: ObjectStoreFactory,
        desk: Sessions,
        *,
        enrolled_only: bool,
        turnstile: TransferThrottle | None,
    ) -> None:
        """`turnstile`: for transfers of many objects; None: they all go at once."""
        super().__init__(states, stores, enrolled_only)
        self._desk, self._turnstile = desk, turnstile

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
                if any(tree.children for tree in response.message_object_trees):
                    self._await_turn(node_id)
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
            request_id = envelope.metadata.reply_to_message_id
            self._desk.announce(request_id, reply, response.objects_to_push)
        self._desk.news.set()
        if response.objects_to_push:
            self._await_turn(request.node.node_id)
        return response

    def PushObject(  # noqa: N802
        self, request: PushObjectRequest, context: grpc.ServicerContext
    ) -> PushObjectResponse:
        """One object of a reply arrives."""
        # The size of all: reading the content, if only for its length, makes a copy of it.
        if not self._desk.allowance.spend(request.node.node_id, request.ByteSize()):
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "more than any reply can need")
        response = super().PushObject(request, context)
        if response.stored and self._desk.object_came(request.object_id):
            self._end_turn(request.node.node_id)
            self._desk.news.set()
        return response

    def ConfirmMessageReceived(  # noqa: N802
        self, request: ConfirmMessageReceivedRequest, context: grpc.ServicerContext
    ) -> ConfirmMessageReceivedResponse:
        """A site has all of a request."""
        response = super().ConfirmMessageReceived(request, context)
        self._end_turn(request.node.node_id)
        return response

    def _await_turn(self, node_id: int) -> None:
        if self._turnstile is not None:
            self._turnstile.enter(node_id)

    def _end_turn(self, node_id: int) -> None:
        if self._turnstile is not None:
            self._turnstile.leave(node_id)
