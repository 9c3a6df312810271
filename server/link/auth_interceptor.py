"""Checks every call: Flower checks its signature, then we check the key behind it."""

import contextlib
from collections.abc import Callable
from typing import Any

import grpc
from flwr.common.constant import (
    NOOP_ACCOUNT_NAME,
    NOOP_FLWR_AID,
    PUBLIC_KEY_HEADER,
    TIMESTAMP_HEADER,
)
from flwr.server.superlink.fleet.grpc_rere.node_auth_server_interceptor import (
    NodeAuthServerInterceptor,
)
from flwr.server.superlink.linkstate import LinkStateFactory

from erosion.common.protocol.admission_terms import Reason
from erosion.server.enrolment import rejection_details
from erosion.server.enrolment.authorizer import KeptOut
from erosion.server.enrolment.rejection_details import refusal, refuse, say
from erosion.server.enrolment.rejections import RejectionLog
from erosion.server.enrolment.serving_certificate import ServingCertificate
from erosion.server.link.sessions import Sessions


class Door(NodeAuthServerInterceptor):
    """Flower's check of every call's signature, then ours of the key behind it."""

    def __init__(
        self,
        states: LinkStateFactory,
        desk: Sessions,
        keeper: RejectionLog,
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
            except Exception:  # how gRPC ends a call; it goes on its way
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
        reason = rejection_details.refused_for(context)
        if reason is None:
            return  # a call of a session that has ended, say; nobody is kept out
        hospital = rejection_details.hospital_in(context)
        if reason is Reason.CLOCK:  # refused before the key was looked up, but rightly signed
            verdict = self._keeper.verdict(public_key)
            hospital = verdict.hospital if verdict is not None else None
        text = rejection_details.put_into_words(context, reason, site_time)
        self._keeper.keep_out(hospital, context.peer(), reason, text)
