"""Admission over real gRPC, and both sides' messages about sites that are refused."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from flwr.clientapp import ClientApp

from erosion.client.connection import line as line_module
from erosion.client.connection.agent import Agent
from erosion.client.connection.connection_errors import connection_error
from erosion.client.connection.credentials import Credentials, credentials_for
from erosion.client.connection.line import OURS, SiteLine, Tls
from erosion.client.site_file import CoordinatorAddress, load_site
from erosion.common.errors import LinkError, SiteError
from erosion.common.line.frames import Kind, Versions, frame
from erosion.common.support import expiry
from erosion.common.support.keys import new_private_key, private_pem
from erosion.server.enrolment import certificates, rejections
from erosion.server.enrolment.enrolment import (
    enrol_site,
    renew_coordinator,
    renew_site,
    revoke_site,
)
from erosion.server.enrolment.federation_folder import FederationFolder, OwnAuthority
from erosion.server.link import Link, link, site_session
from erosion.server.link.open_link import make_link
from erosion.server.link.site_session import SiteSession
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

    def coordinator(
        self, hospital: str = "bob", keys: FederationFolder | None = None
    ) -> CoordinatorAddress:
        """What the site file of this hospital's kit says, with the address of this coordinator."""
        kit = unpack_kit(keys or self.keys, hospital, self.folder / "unpacked")
        unpacked = load_site(kit / "site.toml").coordinator
        return unpacked.model_copy(update={"address": self.link.address})

    def line(self, hospital: str = "bob", keys: FederationFolder | None = None) -> Credentials:
        """What a site with this hospital's kit dials with."""
        return credentials_for(self.coordinator(hospital, keys))

    def tls(self, hospital: str = "bob", keys: FederationFolder | None = None) -> Tls:
        """The keys of that."""
        tls = self.line(hospital, keys).tls
        assert tls is not None
        return tls

    def stranger(self, *, days: float = 1) -> Credentials:
        """A site with a certificate of the federation's authority, and a key nobody knows."""
        authority = certificates.load_authority(self.keys.authority_key, self.keys.authority)
        key = new_private_key()
        ends = expiry.now() + timedelta(days=days)
        certificate = certificates.issue_site(authority, "bob", key.public_key(), ends)
        tls = replace(self.tls(), certificate=certificates.pem(certificate), key=private_pem(key))
        return replace(self.line(), tls=tls)

    def refused(self, line: Credentials) -> str:
        """What the site says; it must not be let in."""
        encrypted = line.tls is not None
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


def wait_until(wanted: Callable[[], object], seconds: float = PATIENCE) -> None:
    end = time.monotonic() + seconds
    while not wanted():
        assert time.monotonic() < end
        time.sleep(0.02)


def ended_by(connection: SiteLine) -> grpc.RpcError:
    """What ends a connection that stands."""
    try:
        message = connection.receive(PATIENCE)
    except grpc.RpcError as problem:
        return problem
    raise AssertionError(f"the connection stands, and brought {message}")


def deaf(connection: SiteLine) -> SiteLine:
    """A connection that nobody attends to, as a cut line or a frozen program leaves it."""
    vars(connection)["_take"] = lambda _received: None
    return connection


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    door = Door(tmp_path)
    yield door
    door.link.stop()


def test_an_enrolled_key_is_let_in_and_known_by_its_hospital(door: Door) -> None:
    with door.line("bob").connect() as connection:
        wait_until(lambda: door.connected() == ["bob"])
        welcome = connection.welcome
        assert welcome.hospital == "bob"
        assert welcome.expires is not None
        assert welcome.expires > expiry.now()
        assert welcome.versions == OURS
    wait_until(lambda: door.connected() == [])
    assert door.recorded() == []


def test_a_key_that_was_never_enrolled_is_refused(door: Door) -> None:
    assert "its key is not enrolled in this federation" in door.refused(door.stranger())
    assert door.connected() == []
    ((hospital, text),) = door.recorded()
    assert hospital is None
    assert "not enrolled" in text


def without_certificate(tls: Tls) -> Tls:
    return replace(tls, certificate=None, key=None)  # type: ignore[arg-type]  # as a stranger


@pytest.mark.parametrize("kind", ["none", "another federation's", "expired"])
def test_a_certificate_that_is_not_accepted_does_not_get_beyond_the_handshake(
    door: Door, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    if kind == "none":
        line = replace(door.line(), tls=without_certificate(door.tls()))
    elif kind == "expired":
        line = door.stranger(days=-0.1)
    else:
        other = make_federation(door.folder / "other", "bob")
        tls = replace(door.tls(keys=other), root=door.tls("alice").root)
        line = replace(door.line(), tls=tls)
    assert "does not accept this site's certificate" in door.refused(line)
    assert door.connected() == []
    monkeypatch.setattr(rejections, "HANDSHAKE_SECONDS", 0.0)
    ((hospital, text),) = door.recorded()
    assert hospital is None
    assert "TLS was not agreed" in text


def test_a_site_that_trusts_another_authority_does_not_connect(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_federation(door.folder / "other", "bob")
    tls = replace(door.tls(), root=other.authority.read_bytes())
    said = door.refused(replace(door.line(), tls=tls))
    assert "another authority" in said
    assert "ca.crt" in said
    assert door.connected() == []
    monkeypatch.setattr(rejections, "HANDSHAKE_SECONDS", 0.0)
    ((_, text),) = door.recorded()
    assert "TLS was not agreed" in text


def test_a_site_cannot_pose_as_the_coordinator(door: Door) -> None:
    """Its certificate is the federation's, and even for the right name: it is not a server's."""
    kit = unpack_kit(door.keys, "alice", door.folder / "alices")
    line = door.line("bob")
    posed = (kit / "node.key").read_bytes() + (kit / "node.crt").read_bytes()
    door.keys.coordinator.write_bytes(posed)
    assert "another authority" in door.refused(line)
    assert door.connected() == []


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


def test_the_same_key_twice_is_one_site(door: Door) -> None:
    with door.line().connect():
        assert "its key is in use by another connection" in door.refused(door.line())
        assert door.connected() == ["bob"]
        ((_, text),) = door.recorded()
    assert "in use" in text
    with door.line().connect():  # and once the first is gone, the second may come
        wait_until(lambda: door.connected() == ["bob"])


def test_a_site_that_vanished_without_a_word_may_come_back_at_once(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_session, "PROBE_SECONDS", 0.2)
    with deaf(door.line().connect()):
        wait_until(lambda: door.connected() == ["bob"])
        with door.line().connect():
            wait_until(lambda: list(door.link.grid.sessions().values()) == [2])
            assert door.connected() == ["bob"]
    assert door.recorded() == []


def test_a_site_that_is_not_heard_of_is_given_up(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    with deaf(door.line().connect()):
        wait_until(lambda: door.connected() == ["bob"])
        monkeypatch.setattr(link, "TICK_SECONDS", 0.01)
        monkeypatch.setattr(site_session, "PING_TICKS", 2)
        wait_until(lambda: door.connected() == [])
    assert door.recorded() == []  # it is gone, not turned away


def test_a_coordinator_that_is_not_heard_of_is_given_up(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SiteSession, "tick", lambda _: None)
    monkeypatch.setattr(line_module, "TICK_SECONDS", 0.01)
    with door.line().connect() as connection:
        assert "nothing was heard" in str(ended_by(connection))


def test_another_version_is_told_both(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    line = door.line()
    monkeypatch.setattr(line_module, "OURS", Versions(OURS.wire, OURS.protocol + 1, "9.8.7"))
    said = door.refused(line)
    for words in ("erosion 9.8.7", OURS.words, "install the same version"):
        assert words in said
    ((hospital, text),) = door.recorded()
    assert hospital == "bob"
    assert "erosion 9.8.7" in text
    assert OURS.words in text


def test_an_expired_certificate_is_refused_by_the_site(door: Door) -> None:
    line = door.line()
    renew_coordinator(door.keys, days=-0.5)
    said = door.refused(line)
    assert "has expired" in said
    assert "erosion enroll renew coordinator" in said
    assert door.connected() == []
    renew_coordinator(door.keys)  # the coordinator shows it without a restart
    with line.connect():
        wait_until(lambda: door.connected() == ["bob"])


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
        wait_until(lambda: door.connected() == ["bob"])


def test_a_site_knows_by_itself_that_its_certificate_has_expired(door: Door) -> None:
    coordinator = door.coordinator()
    assert coordinator.certificate is not None
    line = door.stranger(days=-1)
    assert line.tls is not None
    assert coordinator.private_key is not None
    coordinator.certificate.write_bytes(line.tls.certificate)
    coordinator.private_key.write_bytes(line.tls.key)
    with pytest.raises(SiteError, match=r"certificate.*expired on.*enroll install"):
        credentials_for(coordinator)


def test_a_revoked_key_is_out_within_seconds_and_a_new_one_is_let_in(door: Door) -> None:
    line = door.line()
    with line.connect() as connection:
        wait_until(lambda: door.connected() == ["bob"])
        began = time.monotonic()
        revoke_site(door.keys, "bob")
        trouble = connection_error(ended_by(connection), line.address, encrypted=True)
        assert time.monotonic() - began < 20  # a second or two on a quiet machine
        assert "its key was revoked" in trouble.text
        assert trouble.is_final
        wait_until(lambda: door.link.grid.get_node_ids() == [])
    assert "its key was revoked" in door.refused(line)
    enrol_site(door.keys, "bob")
    with door.line().connect():
        wait_until(lambda: door.connected() == ["bob"])


def test_a_certificate_that_expires_within_a_connection_ends_it(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    with door.line().connect() as connection:
        wait_until(lambda: door.connected() == ["bob"])
        later = expiry.now() + timedelta(days=400)
        monkeypatch.setattr(expiry, "now", lambda: later)
        trouble = connection_error(ended_by(connection), "coordinator", encrypted=True)
    assert "expired on" in trouble.text


def test_a_site_enrolled_while_the_coordinator_runs_is_let_in(door: Door) -> None:
    enrol_site(door.keys, "carol")
    with door.line("carol").connect():
        wait_until(lambda: door.connected() == ["carol"])


def test_a_site_with_a_certificate_of_its_hospitals_authority_is_let_in(door: Door) -> None:
    authority = certificates.new_authority()
    key, ends = new_private_key(), expiry.now() + timedelta(days=5)
    issued = certificates.issue_site(authority, "site.carol.example", key.public_key(), ends)
    (door.keys.path / "carol-ca.crt").write_bytes(certificates.pem(authority.certificate))
    before = door.keys.read_place()
    own = OwnAuthority(certificate=Path("carol-ca.crt"), name="site.carol.example")
    door.keys.write_place(before.model_copy(update={"authorities": {"carol": own}}))
    tls = replace(door.tls(), certificate=certificates.pem(issued), key=private_pem(key))
    line = replace(door.line(), tls=tls)
    with line.connect() as connection:
        wait_until(lambda: door.connected() == ["carol"])
        door.keys.write_place(before)
        trouble = connection_error(ended_by(connection), line.address, encrypted=True)
    assert "not enrolled" in trouble.text


def test_a_damaged_roster_lets_nobody_in_and_throws_nobody_out(door: Door) -> None:
    line, stranger = door.line(), door.stranger()
    with line.connect() as connection:
        wait_until(lambda: door.connected() == ["bob"])
        door.keys.roster.write_text("not a roster")
        assert connection.receive(3) is None
        assert door.connected() == ["bob"]
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


@pytest.mark.parametrize(
    "sent",
    [b"", b"\x00", bytes([99]), frame(Kind.DATA, b"x"), frame(Kind.HELLO, b"{"),
     frame(Kind.HELLO, b"[" * 100_000), frame(Kind.HELLO, b"{}"),
     frame(Kind.HELLO, b'{"wire":1e400,"protocol":true,"software":"x"}')],
)  # fmt: skip
def test_a_greeting_that_is_none_ends_the_call(door: Door, sent: bytes) -> None:
    tls = door.tls()
    credentials = grpc.ssl_channel_credentials(tls.root, tls.key, tls.certificate)
    with grpc.secure_channel(door.link.address, credentials) as channel:
        call = channel.stream_stream("/erosion.v1.Line/Connect")(iter([sent]), timeout=PATIENCE)
        with pytest.raises(grpc.RpcError) as refused:
            next(call)
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    ((hospital, _),) = door.recorded()
    assert hospital == "bob"


def test_there_is_no_other_method(door: Door) -> None:
    tls = door.tls()
    credentials = grpc.ssl_channel_credentials(tls.root, tls.key, tls.certificate)
    with grpc.secure_channel(door.link.address, credentials) as channel:
        for path in ("/grpc.health.v1.Health/Watch", "/flwr.proto.Fleet/PullMessages", "/"):
            call = channel.stream_stream(path)(iter([b""]), timeout=PATIENCE)
            with pytest.raises(grpc.RpcError) as refused:
                next(call)
            assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_a_stranger_is_told_of_once_however_often_it_tries(door: Door) -> None:
    stranger = door.stranger()
    for _ in range(5):
        door.refused(stranger)
    assert len(door.recorded()) == 1


def test_the_certificate_names_the_hospital(door: Door) -> None:
    certificate = x509.load_pem_x509_certificate(door.tls("alice").certificate)
    assert set(certificates.names_in(certificate)) == {"alice"}
