"""The SuperLink itself: its port, its run, and its grid."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
from flwr.common.constant import (
    NOOP_FLWR_AID,
    SubStatus,
)
from flwr.proto.fleet_pb2_grpc import add_FleetServicer_to_server
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION, TaskType
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.superlink.federation import NoOpFederationManager
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from erosion.common.errors import LinkError
from erosion.server.enrolment.authorizer import Admitted, Authorizer
from erosion.server.enrolment.rejections import RejectionLog, TurnedAway
from erosion.server.enrolment.serving_certificate import ServingCertificate
from erosion.server.link.auth_interceptor import Door
from erosion.server.link.fleet_api import Fleet
from erosion.server.link.grid import LinkGrid
from erosion.server.link.sessions import Sessions
from erosion.server.link.store import SpoolingStore
from erosion.server.link.transfer_throttle import TransferThrottle

MAX_RPC_BYTES = 64 * 2**20  # arrays travel in chunks of 5 MiB, so no honest call comes near
WORKERS = 512  # threads; each connected site holds one while it waits


class Link:
    """The SuperLink: `start` it, talk through `grid`, and `stop` it."""

    def __init__(
        self,
        address: str,
        *,
        certificate: ServingCertificate | None = None,
        admission: Authorizer | None = None,
        spool: Path | None = None,
    ) -> None:
        """Listen on `address` ("host:port").

        `certificate`: what sites are shown, None for plain gRPC. `admission`: whom to let in, None
        for everybody. `spool`: a folder for large messages and updates of the round under way,
        made anew and removed in the end; None keeps them in memory.
        """
        desk = Sessions()
        self._desk, self._keeper = desk, RejectionLog(admission)
        self._spool = spool
        self.updates = spool and spool / "updates"  # where a round's are to be kept; None: memory
        self._store = SpoolingStore(spool and spool / "messages")
        stores = ObjectStoreFactory(FLWR_IN_MEMORY_DB_NAME)
        stores.store_instance = self._store
        states = LinkStateFactory(FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), stores)
        self._state = states.state()
        self._asked_address = address
        self._server = grpc.server(
            ThreadPoolExecutor(WORKERS, thread_name_prefix="fleet"),
            interceptors=[Door(states, desk, self._keeper, certificate)],
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
        fleet = Fleet(
            states,
            stores,
            desk,
            enrolled_only=admission is not None,
            turnstile=TransferThrottle(desk.num_sites) if spool else None,
        )
        add_FleetServicer_to_server(fleet, self._server)
        self._health = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self._certificate = certificate
        self.grid = LinkGrid(self._state, self._store, desk)
        self.address = address

    def start(self) -> None:
        """Open the port and the run; raises LinkError where that cannot be done."""
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
        self._make_spool()
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
        if self._spool is not None:
            shutil.rmtree(self._spool, ignore_errors=True)

    def _make_spool(self) -> None:
        if self._spool is None:
            return
        try:
            shutil.rmtree(self._spool, ignore_errors=True)  # of a coordinator that was killed
            for folder in (self._spool, self._spool / "updates", self._spool / "messages"):
                folder.mkdir(mode=0o700)
        except OSError as problem:
            raise LinkError(
                f"The folder {self._spool} cannot be made: {problem.strerror}. Mend that, or keep"
                " updates in memory: --updates memory."
            ) from None
