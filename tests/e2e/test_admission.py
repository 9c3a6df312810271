"""Admission over real gRPC, and both sides' messages about sites that are refused."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
from flwr.client.grpc_rere_client import node_auth_client_interceptor
from flwr.clientapp import ClientApp
from flwr.proto.fleet_pb2 import ActivateNodeRequest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from erosion.client.connection.agent import Agent
from erosion.client.connection.connection_errors import connection_error
from erosion.client.connection.credentials import Credentials, credentials_for
from erosion.client.site_file import CoordinatorAddress, load_site
from erosion.common.errors import LinkError
from erosion.common.support import expiry
from erosion.common.support.keys import new_private_key
from erosion.server.enrolment import rejections
from erosion.server.enrolment.enrolment import (
    enrol_site,
    renew_coordinator,
    renew_site,
    revoke_site,
)
from erosion.server.enrolment.federation_folder import FederationFolder
from erosion.server.link import Link, sessions
from erosion.server.link.open_link import make_link
from tests.support.enrolled import make_federation, unpack_kit
from tests.support.federation import small_study
from tests.support.patience import PATIENCE


class Door:
    """A coordinator's port with alice and bob enrolled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.keys = make_federation(folder / "federation", "alice", "bob")
        self.link = make_link(small_study(), "127.0.0.1:0", self.keys)
        self.link.start()

    def line(self, hospital: str = "bob", keys: FederationFolder | None = None) -> Credentials:
        """What a site with this hospital's kit dials with."""
        kit = unpack_kit(keys or self.keys, hospital, self.folder / "unpacked")
        coordinator = load_site(kit / "site.toml").coordinator
        address = CoordinatorAddress(
            address=self.link.address,
            root_certificate=coordinator.root_certificate,
            private_key=coordinator.private_key,
        )
        return credentials_for(address)

    def refused(self, line: Credentials) -> str:
        """What the site says; it must not be let in."""
        encrypted = line.root_certificate is not None
        agent = Agent(
            line.connect, ClientApp(), address=line.address, encrypted=encrypted, give_up_seconds=0
        )
        with pytest.raises(LinkError) as said:
            agent.run()
        return str(said.value)

    def recorded(self) -> list[tuple[str | None, str]]:
        """What the coordinator has noted since this was last asked."""
        return [(event.hospital, event.text) for event in self.link.turned_away()]

    def connected(self) -> list[str | None]:
        """As whom the sites are known that are let in."""
        return [self.link.hospital_of(node) for node in self.link.grid.get_node_ids()]


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    door = Door(tmp_path)
    yield door
    door.link.stop()


def test_an_enrolled_key_is_let_in_and_known_by_its_hospital(door: Door) -> None:
    with door.line("bob").connect() as connection:
        assert door.connected() == ["bob"]
        assert connection.key_expires is not None
        assert connection.key_expires > expiry.now()
    assert door.connected() == []
    assert door.recorded() == []


def test_a_key_that_was_never_enrolled_is_refused(door: Door) -> None:
    stranger = replace(door.line(), private_key=new_private_key())
    assert "its key is not enrolled in this federation" in door.refused(stranger)
    assert door.connected() == []
    ((hospital, text),) = door.recorded()
    assert hospital is None
    assert "not enrolled" in text


def test_a_site_without_a_key_is_refused(door: Door) -> None:
    assert "its key is not enrolled" in door.refused(replace(door.line(), private_key=None))
    assert door.connected() == []
    assert door.recorded()


def test_a_site_that_trusts_another_authority_does_not_connect(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_federation(door.folder / "other", "bob")
    said = door.refused(replace(door.line(), root_certificate=other.authority.read_bytes()))
    assert "another authority" in said
    assert "ca.crt" in said
    assert door.connected() == []
    monkeypatch.setattr(rejections, "HANDSHAKE_SECONDS", 0.0)
    ((_, text),) = door.recorded()
    assert "before TLS was agreed" in text


def test_a_site_that_does_not_use_tls_does_not_connect(door: Door) -> None:
    said = door.refused(Credentials(door.link.address))
    assert "expects TLS (coordinator.root_certificate is not set)" in said
    assert door.connected() == []


def test_a_coordinator_without_tls_is_not_taken_for_one_with(door: Door) -> None:
    plain = Link("127.0.0.1:0")
    plain.start()
    try:
        said = door.refused(replace(door.line(), address=plain.address))
        assert plain.grid.get_node_ids() == []
    finally:
        plain.stop()
    assert "does not speak TLS" in said


def test_the_same_key_twice_is_one_site(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "SILENT_SECONDS", 600.0)  # however slow this machine is
    with door.line().connect():
        assert "its key is in use by another connection" in door.refused(door.line())
        assert door.connected() == ["bob"]
        ((_, text),) = door.recorded()
    assert "in use" in text
    with door.line().connect():  # and once the first is gone, the second may come
        assert door.connected() == ["bob"]


def test_a_site_that_vanished_without_a_word_may_come_back_before_its_heartbeat_lapses(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "SILENT_SECONDS", 0.0)
    vanished = door.line().connect()
    vanished.__enter__()  # and no call after that
    with door.line().connect():
        assert door.connected() == ["bob"]


def test_a_site_cannot_sign_another_in(door: Door) -> None:
    """Flower activates whatever key a request names; here it must be the one that signed it."""
    alice, bob = door.line("alice").connect(), door.line("bob").connect()
    request = ActivateNodeRequest(public_key=alice._public_key, heartbeat_interval=10.0)
    with pytest.raises(grpc.RpcError) as refused:
        bob._stub.ActivateNode(request)
    assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
    assert door.connected() == []
    assert door.recorded() == [("bob", "it signed in with another site's public key")]


@pytest.mark.parametrize(("hours", "side"), [(1, "ahead of"), (-1, "behind")])
def test_a_clock_that_is_an_hour_off_is_said_with_the_difference(
    door: Door, monkeypatch: pytest.MonkeyPatch, hours: int, side: str
) -> None:
    monkeypatch.setattr(
        node_auth_client_interceptor, "now", lambda: expiry.now() + timedelta(hours=hours)
    )
    said = door.refused(door.line())
    assert f"s {side} the coordinator's" in said
    assert "NTP" in said
    assert door.connected() == []
    ((hospital, text),) = door.recorded()
    assert hospital == "bob"
    assert side in text


def test_an_expired_certificate_is_refused_by_the_site(door: Door) -> None:
    line = door.line()
    renew_coordinator(door.keys, days=-0.5)
    said = door.refused(line)
    assert "has expired" in said
    assert "erosion enroll renew coordinator" in said
    assert door.connected() == []
    renew_coordinator(door.keys)  # the coordinator shows it without a restart
    with line.connect():
        assert door.connected() == ["bob"]


def test_a_certificate_for_another_name_is_refused_by_the_site(door: Door) -> None:
    line = door.line()
    renew_coordinator(door.keys, ["elsewhere.example.org"])
    said = door.refused(line)
    assert "is for other names" in said
    assert door.connected() == []


def test_an_expired_key_is_refused_until_it_is_renewed(door: Door) -> None:
    line = door.line()
    renew_site(door.keys, "bob", days=-1)
    assert "its key expired on" in door.refused(line)
    ((hospital, _),) = door.recorded()
    assert hospital == "bob"
    renew_site(door.keys, "bob")
    with line.connect():
        assert door.connected() == ["bob"]


def test_a_revoked_key_is_out_at_its_next_call_and_a_new_one_is_let_in(door: Door) -> None:
    line = door.line()
    with line.connect() as connection:
        assert connection.heartbeat()
        revoke_site(door.keys, "bob")
        with pytest.raises(grpc.RpcError) as refused:
            connection.heartbeat()
        trouble = connection_error(refused.value, line.address, encrypted=True)
        assert "its key was revoked" in trouble.text
        assert trouble.is_final
        assert door.link.grid.get_node_ids() == []
    assert "its key was revoked" in door.refused(line)
    enrol_site(door.keys, "bob")
    with door.line().connect():
        assert door.connected() == ["bob"]


def test_a_site_enrolled_while_the_coordinator_runs_is_let_in(door: Door) -> None:
    enrol_site(door.keys, "carol")
    with door.line("carol").connect():
        assert door.connected() == ["carol"]


def test_a_damaged_roster_lets_nobody_in_and_throws_nobody_out(door: Door) -> None:
    with door.line().connect() as connection:
        door.keys.roster.write_text("not a roster")
        assert connection.heartbeat()
        stranger = replace(door.line("alice"), private_key=new_private_key())
        assert "not enrolled" in door.refused(stranger)


def test_knocking_tells_the_hospital_the_expiry_and_the_clock_and_signs_nobody_in(
    door: Door,
) -> None:
    answer = door.line().connect().knock(seconds=10)
    assert answer.problem is None
    assert answer.hospital == "bob"
    assert answer.expires is not None
    assert answer.certificate_expires is not None
    assert answer.ahead is not None
    assert abs(answer.ahead) < timedelta(seconds=60)
    assert door.connected() == []
    assert door.recorded() == []


def test_a_health_check_needs_no_key_and_cannot_be_kept_open(door: Door) -> None:
    credentials = grpc.ssl_channel_credentials(door.keys.authority.read_bytes())
    with grpc.secure_channel(door.link.address, credentials) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        answer = health.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError) as refused:
            next(health.Watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE))
        assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_a_stranger_is_told_of_once_however_often_it_tries(door: Door) -> None:
    stranger = replace(door.line(), private_key=new_private_key())
    for _ in range(5):
        door.refused(stranger)
    assert len(door.recorded()) == 1
