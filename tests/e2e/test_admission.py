"""Admission over real gRPC, and both sides' messages about sites that are refused."""

import json
import socket
import ssl
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
from flwr.clientapp import ClientApp

from erosion_client.connection import site_link
from erosion_client.connection.agent import Agent, Until
from erosion_client.connection.credentials import Credentials, connection_error, credentials_for
from erosion_client.connection.site_link import OURS, SiteLink, Tls
from erosion_client.finding import Severity
from erosion_client.preflight.check import check_keys
from erosion_client.site_file import CoordinatorAddress, load_site
from erosion_common.errors import LinkError, SiteError
from erosion_common.protocol.frames import Kind, Versions, frame
from erosion_common.support import expiry
from erosion_common.support.keys import new_private_key, private_pem
from erosion_server.enrolment import admission, certificates
from erosion_server.enrolment.enrolment import (
    enrol_site,
    renew_coordinator,
    revoke_site,
)
from erosion_server.enrolment.federation_folder import FederationFolder, OwnAuthority
from erosion_server.link import Link, link, service, site_session
from erosion_server.link.link import make_link
from erosion_server.link.site_session import SiteSession
from experiments.hostile_load import http2
from tests.support.enrolled import make_federation, unpack_kit
from tests.support.federation import small_study
from tests.support.patience import PATIENCE, wait_until


class Enrolled:
    """A coordinator's port with alice and bob enrolled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.keys = make_federation(folder / "federation", "alice", "bob")
        self.link = make_link(small_study().hospitals, "127.0.0.1:0", self.keys)
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
        return replace(self.line(), tls=tls, files=None)

    def refused(self, line: Credentials) -> str:
        """What the site says; it must not be let in."""
        encrypted = line.tls is not None
        agent = Agent(
            line.connect,
            ClientApp(),
            address=line.address,
            encrypted=encrypted,
            until=Until(give_up_seconds=0),
        )
        with pytest.raises(LinkError) as said:
            agent.run()
        return str(said.value)

    def recorded(self) -> list[tuple[str | None, str]]:
        """What the coordinator has noted since this was last asked."""
        return [(event.hospital, event.text) for event in self.link.grid.denials()]

    def connected(self) -> list[str | None]:
        """As whom the sites are known that are let in."""
        return [self.link.hospital_of(node) for node in self.link.grid.get_node_ids()]


def ended_by(connection: SiteLink) -> grpc.RpcError:
    """What ends a connection that stands."""
    try:
        message = connection.receive(PATIENCE)
    except grpc.RpcError as problem:
        return problem
    raise AssertionError(f"the connection stands, and brought {message}")


def deaf(connection: SiteLink) -> SiteLink:
    """A connection that nobody attends to, as a cut line or a frozen program leaves it."""
    vars(connection)["_take"] = lambda _received: None
    return connection


@pytest.fixture
def enrolled(tmp_path: Path) -> Iterator[Enrolled]:
    enrolled = Enrolled(tmp_path)
    yield enrolled
    enrolled.link.stop()


def test_a_key_that_was_never_enrolled_is_refused(enrolled: Enrolled) -> None:
    stranger = enrolled.stranger()
    for _ in range(2):
        assert "its key is not enrolled in this federation" in enrolled.refused(stranger)
    assert enrolled.connected() == []
    ((hospital, text),) = enrolled.recorded()  # once, however often it tries
    assert hospital is None
    assert "not enrolled" in text


def without_certificate(tls: Tls) -> Tls:
    return replace(tls, certificate=None, key=None)  # type: ignore[arg-type]  # as a stranger


@pytest.mark.parametrize("kind", ["none", "another federation's", "expired"])
def test_a_certificate_that_is_not_accepted_does_not_get_beyond_the_handshake(
    enrolled: Enrolled, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    if kind == "none":
        line = replace(enrolled.line(), tls=without_certificate(enrolled.tls()), files=None)
    elif kind == "expired":
        line = enrolled.stranger(days=-0.1)
    else:
        other = make_federation(enrolled.folder / "other", "bob")
        tls = replace(enrolled.tls(keys=other), root=enrolled.tls("alice").root)
        line = replace(enrolled.line(), tls=tls)
    assert "does not accept this site's certificate" in enrolled.refused(line)
    assert enrolled.connected() == []
    monkeypatch.setattr(admission, "HANDSHAKE_SECONDS", 0.0)
    ((hospital, text),) = enrolled.recorded()
    assert hospital is None
    assert "TLS was not agreed" in text


def test_an_authority_that_was_put_behind_the_right_one_is_not_trusted(
    enrolled: Enrolled, tmp_path: Path
) -> None:
    """People compare the first one's fingerprint."""
    impostor = make_federation(tmp_path / "impostor", "alice")
    coordinator = enrolled.coordinator("bob")
    assert coordinator.root_certificate is not None
    before = coordinator.root_certificate.read_bytes()
    coordinator.root_certificate.write_bytes(before + impostor.authority.read_bytes())
    with pytest.raises(SiteError, match=r"ca\.crt: 2 certificates"):
        credentials_for(coordinator)
    site = load_site(coordinator.root_certificate.parent / "site.toml")
    authority = {finding.what: finding for finding in check_keys(site)}["coordinator's CA"]
    assert authority.outcome is Severity.FAILED


def test_the_same_authority_is_the_same_coordinator_however_its_file_is_written(
    enrolled: Enrolled,
) -> None:
    """Else a kit with another end of line would begin all budgets anew."""
    coordinator = enrolled.coordinator("bob")
    first = credentials_for(coordinator)
    assert coordinator.root_certificate is not None
    before = coordinator.root_certificate.read_bytes()
    coordinator.root_certificate.write_bytes(b"renewed\r\n" + before.replace(b"\n", b"\r\n"))
    assert credentials_for(coordinator) == first


def test_a_site_cannot_pose_as_the_coordinator(enrolled: Enrolled) -> None:
    """Its certificate is the federation's, and even for the right name: it is not a server's."""
    kit = unpack_kit(enrolled.keys, "alice", enrolled.folder / "alices")
    line = enrolled.line("bob")
    posed = (kit / "node.key").read_bytes() + (kit / "node.crt").read_bytes()
    enrolled.keys.coordinator.write_bytes(posed)
    assert "another authority" in enrolled.refused(line)
    assert enrolled.connected() == []


def test_a_site_that_does_not_use_tls_does_not_connect(enrolled: Enrolled) -> None:
    said = enrolled.refused(Credentials(enrolled.link.address))
    assert "expects TLS (coordinator.root_certificate is not set)" in said
    assert enrolled.connected() == []


def test_a_coordinator_without_tls_is_not_taken_for_one_with(enrolled: Enrolled) -> None:
    plain = Link("127.0.0.1:0")
    plain.start()
    try:
        said = enrolled.refused(replace(enrolled.line(), address=plain.address))
        assert plain.grid.get_node_ids() == []
    finally:
        plain.stop()
    assert "does not speak TLS" in said


def test_the_same_key_twice_is_one_site(enrolled: Enrolled) -> None:
    with enrolled.line().connect() as connection:
        welcome = connection.welcome
        assert (welcome.hospital, welcome.versions) == ("bob", OURS)
        assert welcome.expires is not None
        assert welcome.expires > expiry.now()
        assert "its key is in use by another connection" in enrolled.refused(enrolled.line())
        assert enrolled.connected() == ["bob"]
        ((_, text),) = enrolled.recorded()
    assert "in use" in text
    with enrolled.line().connect():  # and once the first is gone, the second may come
        wait_until(lambda: enrolled.connected() == ["bob"])


def test_a_site_that_vanished_without_a_word_may_come_back_at_once(
    enrolled: Enrolled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_session, "PROBE_SECONDS", 0.2)
    with deaf(enrolled.line().connect()):
        wait_until(lambda: enrolled.connected() == ["bob"])
        with enrolled.line().connect():
            wait_until(lambda: [n for n, _ in enrolled.link.grid.visits().values()] == [2])
            assert enrolled.connected() == ["bob"]
    assert enrolled.recorded() == []


def test_a_coordinator_that_is_not_heard_of_is_given_up(
    enrolled: Enrolled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SiteSession, "tick", lambda _: None)
    monkeypatch.setattr(site_link, "TICK_SECONDS", 0.01)
    with enrolled.line().connect() as connection:
        assert "nothing was heard" in str(ended_by(connection))


@pytest.mark.parametrize("version", ["9.8.7", "9.8.7\x1b[2J" + "7" * 900])
def test_another_version_is_told_both(
    enrolled: Enrolled, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    line = enrolled.line()
    monkeypatch.setattr(
        site_link, "OURS", Versions(OURS.wire, OURS.protocol + 2, version, OURS.protocol + 1)
    )
    said = enrolled.refused(line)
    ((hospital, text),) = enrolled.recorded()
    assert hospital == "bob"
    for each in (said, text):
        assert "erosion 9.8.7" in each
        assert each.isprintable()
    assert OURS.words in said
    assert OURS.words in text
    assert len(text) < 300


@pytest.mark.parametrize(
    ("hosts", "days", "said"),
    [([], -0.5, "erosion enroll renew coordinator"), (["elsewhere.example.org"], 90, "names")],
)
def test_a_certificate_that_has_expired_or_is_for_another_name_is_refused_by_the_site(
    enrolled: Enrolled, hosts: list[str], days: float, said: str
) -> None:
    line = enrolled.line()
    renew_coordinator(enrolled.keys, hosts, days=days)
    assert said in enrolled.refused(line)
    assert enrolled.connected() == []
    renew_coordinator(enrolled.keys, ["127.0.0.1"])  # it shows the new one without a restart
    with line.connect():
        wait_until(lambda: enrolled.connected() == ["bob"])


def test_a_site_knows_by_itself_that_its_certificate_has_expired(enrolled: Enrolled) -> None:
    coordinator = enrolled.coordinator()
    assert coordinator.certificate is not None
    line = enrolled.stranger(days=-1)
    assert line.tls is not None
    assert coordinator.private_key is not None
    coordinator.certificate.write_bytes(line.tls.certificate)
    coordinator.private_key.write_bytes(line.tls.key)
    expired = credentials_for(coordinator)
    with pytest.raises(SiteError, match=r"certificate.*expired on.*enroll install"):
        expired.connect()


def test_a_revoked_key_is_out_within_seconds_and_a_new_one_is_let_in(enrolled: Enrolled) -> None:
    line = enrolled.line()
    with line.connect() as connection:
        wait_until(lambda: enrolled.connected() == ["bob"])
        revoke_site(enrolled.keys, "bob")
        trouble = connection_error(ended_by(connection), line.address, encrypted=True)
        assert "its key was revoked" in trouble.text
        assert trouble.is_final
        wait_until(lambda: enrolled.link.grid.get_node_ids() == [])
    assert "its key was revoked" in enrolled.refused(line)
    enrol_site(enrolled.keys, "bob")
    with enrolled.line().connect():
        wait_until(lambda: enrolled.connected() == ["bob"])


def test_a_coordinator_that_runs_for_months_says_in_time_that_its_certificate_ends(
    enrolled: Enrolled, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is good for 90 days, and people are warned 30 days before its end."""

    def said() -> list[str]:
        return [line for line in caplog.messages if "enroll renew coordinator" in line]

    begun = expiry.now()
    assert said() == []
    monkeypatch.setattr(expiry, "now", lambda: begun + timedelta(days=61))
    wait_until(said)
    assert "the coordinator's certificate is valid until" in said()[0]
    enrolled.keys.authority.rename(enrolled.folder / "kept elsewhere")
    monkeypatch.setattr(expiry, "now", lambda: begun + timedelta(days=62))
    wait_until(lambda: "what is about to expire is not known" in caplog.text)
    (enrolled.folder / "kept elsewhere").rename(enrolled.keys.authority)
    with enrolled.line("bob").connect():  # that ends no line
        wait_until(lambda: enrolled.connected() == ["bob"])


def test_a_site_with_a_certificate_of_its_hospitals_authority_is_let_in(enrolled: Enrolled) -> None:
    authority = certificates.new_authority()
    key, ends = new_private_key(), expiry.now() + timedelta(days=5)
    issued = certificates.issue_site(authority, "site.carol.example", key.public_key(), ends)
    (enrolled.keys.path / "carol-ca.crt").write_bytes(certificates.pem(authority.certificate))
    before = enrolled.keys.read_place()
    own = OwnAuthority(certificate=Path("carol-ca.crt"), name="site.carol.example")
    enrolled.keys.write_place(before.model_copy(update={"authorities": {"carol": own}}))
    tls = replace(enrolled.tls(), certificate=certificates.pem(issued), key=private_pem(key))
    line = replace(enrolled.line(), tls=tls)
    with line.connect() as connection:
        wait_until(lambda: enrolled.connected() == ["carol"])
        enrolled.keys.write_place(before)
        trouble = connection_error(ended_by(connection), line.address, encrypted=True)
    assert "not enrolled" in trouble.text


@pytest.mark.parametrize(
    "sent",
    [b"", b"\x00", bytes([99]), frame(Kind.DATA, b"x"), frame(Kind.HELLO, b"{"),
     frame(Kind.HELLO, b"[" * 100_000), frame(Kind.HELLO, b"{}"),
     frame(Kind.HELLO, b'{"wire":1e400,"protocol":true,"software":"x"}')],
)  # fmt: skip
def test_a_greeting_that_is_none_ends_the_call(enrolled: Enrolled, sent: bytes) -> None:
    tls = enrolled.tls()
    credentials = grpc.ssl_channel_credentials(tls.root, tls.key, tls.certificate)
    with grpc.secure_channel(enrolled.link.address, credentials) as channel:
        call = channel.stream_stream("/erosion.v1.Line/Connect")(iter([sent]), timeout=PATIENCE)
        with pytest.raises(grpc.RpcError) as refused:
            next(call)
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    ((hospital, _),) = enrolled.recorded()
    assert hospital == "bob"


def test_there_is_no_other_method(enrolled: Enrolled) -> None:
    tls = enrolled.tls()
    credentials = grpc.ssl_channel_credentials(tls.root, tls.key, tls.certificate)
    with grpc.secure_channel(enrolled.link.address, credentials) as channel:
        for path in ("/grpc.health.v1.Health/Watch", "/flwr.proto.Fleet/PullMessages", "/"):
            call = channel.stream_stream(path)(iter([b""]), timeout=PATIENCE)
            with pytest.raises(grpc.RpcError) as refused:
                next(call)
            assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_a_hospital_that_comes_and_goes_without_end_is_kept_out_for_a_while(
    enrolled: Enrolled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MOST_CONNECTS", 3)
    for _ in range(3):
        with enrolled.line("bob").connect():
            wait_until(lambda: enrolled.connected() == ["bob"])
        wait_until(lambda: enrolled.connected() == [])
    assert "it connected 3 times in 60 s" in enrolled.refused(enrolled.line("bob"))
    assert enrolled.recorded() == [("bob", "it connected 3 times in 60 s")]
    with enrolled.line("alice").connect():
        wait_until(lambda: enrolled.connected() == ["alice"])
    monkeypatch.setattr(service, "CONNECTS_SECONDS", 0.0)  # a while later
    with enrolled.line("bob").connect():
        wait_until(lambda: enrolled.connected() == ["bob"])


def test_who_takes_nothing_in_does_not_keep_its_hospital_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of the key holds calls open at the coordinator's greeting, as many as it may."""
    monkeypatch.setattr(service, "GREETING_SECONDS", 0.5)
    monkeypatch.setattr(link, "IDLE_SECONDS", 1.0)
    enrolled = Enrolled(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    kit = tmp_path / "unpacked" / "bob"
    line = enrolled.line("bob")
    context.load_cert_chain(kit / "node.crt", kit / "node.key")
    host, _, port = enrolled.link.address.rpartition(":")
    hello = frame(Kind.HELLO, json.dumps(OURS.as_json()).encode())
    greetings = [
        http2.call(stream) + http2.data(stream, http2.message_head(len(hello)) + hello)
        for stream in range(1, 2 * service.MOST_GREETINGS, 2)
    ]
    with context.wrap_socket(socket.create_connection((host, int(port)))) as copy:
        copy.sendall(http2.opening(window=0) + http2.acknowledged() + b"".join(greetings))
        wait_until(lambda: ("bob", "it did not take the greeting in") in enrolled.recorded())
        wait_until(lambda: line.connect().check(seconds=PATIENCE).problem is None)
    enrolled.link.stop()


def test_where_the_coordinators_own_certificate_has_expired_that_is_said_first(
    enrolled: Enrolled, monkeypatch: pytest.MonkeyPatch
) -> None:
    enrolled.refused(enrolled.stranger(days=-0.1))
    after = expiry.now() + timedelta(days=91)
    monkeypatch.setattr(expiry, "now", lambda: after)
    monkeypatch.setattr(admission, "HANDSHAKE_SECONDS", 0.0)
    ((_, text),) = enrolled.recorded()
    assert "TLS was not agreed: the coordinator's certificate expired on" in text
    assert f"run: erosion enroll renew coordinator{enrolled.keys.option}. Else: no" in text
