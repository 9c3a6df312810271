"""Creating a federation, and enrolling, renewing and revoking its sites."""

import errno
import fcntl
import gzip
import io
import os
import re
import shlex
import shutil
import ssl
import stat
import subprocess
import tarfile
import tracemalloc
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from erosion_client.connection.credentials import credentials_for, known_as
from erosion_client.connection.serve import RunningSite
from erosion_client.enrolment.install import install
from erosion_client.records.records import Records
from erosion_client.site_file import Site, load_site
from erosion_common.errors import EnrolmentError, SiteError
from erosion_common.program.command_line import main
from erosion_common.protocol.frames import Reason
from erosion_common.sealed.pinned_keys import read_pinned_keys
from erosion_common.settings.names import checked_hospital
from erosion_common.support import expiry
from erosion_common.support.files import version_of
from erosion_common.support.keys import (
    certificate_fingerprint,
    certified_key,
    fingerprint,
    new_private_key,
    private_pem,
    public_pem,
    read_public_key,
)
from erosion_common.support.software import software_version
from erosion_server.enrolment import admission as admission_module
from erosion_server.enrolment import certificates, federation_folder
from erosion_server.enrolment.admission import Admitted, Authorizer, NotAdmitted
from erosion_server.enrolment.certificates import ServingCertificate, read_own_authorities
from erosion_server.enrolment.enrolment import (
    Enrolment,
    enrol_site,
    init_federation,
    renew_coordinator,
    renew_site,
    revoke_site,
)
from erosion_server.enrolment.federation_folder import (
    Address,
    FederationFolder,
    OwnAuthority,
    checked_host,
    read_key_registry,
)
from erosion_server.link.link import make_link
from experiments.program import unpack_kit
from tests.support.patience import PATIENCE
from tests.support.refusals import refused

ROOT = Path(__file__).resolve().parents[2]
HOSTS = ("erosion.example.org", "192.0.2.7")


@pytest.fixture
def folder(tmp_path: Path) -> FederationFolder:
    made = FederationFolder(tmp_path / "federation")
    init_federation(made, Address(hosts=HOSTS, port=9092))
    return made


def with_another_authority(kit: Path, other: FederationFolder, to: Path) -> Path:
    """The kit as somebody on its way could make it: its own authority is still the first."""
    inside = unpack_kit(kit, to / "inside")
    with (inside / "ca.crt").open("ab") as file:
        file.write(other.authority.read_bytes())
    changed = to / "changed.tar.gz"
    with tarfile.open(changed, "w:gz") as archive:
        archive.add(inside, inside.name)
    return changed


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_all_that_a_federation_keeps_is_for_its_owner_alone(folder: FederationFolder) -> None:
    enrol_site(folder, "bob")
    assert mode(folder.path) == mode(folder.kit("bob").parent) == 0o700
    files = [path for path in folder.path.rglob("*") if path.is_file() and path.name != ".lock"]
    assert {path.name: mode(path) for path in files} == dict.fromkeys(
        ["ca.key", "ca.crt", "coordinator.pem", "federation.toml", "roster.toml", "bob.tar.gz"],
        0o600,
    )


def test_a_second_federation_in_one_folder_is_refused(folder: FederationFolder) -> None:
    before = folder.authority_key.read_bytes()
    for lost in (folder.place, folder.authority, folder.coordinator, folder.roster):
        with pytest.raises(EnrolmentError):
            init_federation(folder, Address(hosts=HOSTS, port=9092))
        lost.unlink()
    with pytest.raises(EnrolmentError):
        init_federation(folder, Address(hosts=HOSTS, port=9092))
    assert folder.authority_key.read_bytes() == before


@pytest.mark.parametrize("host", ["", "a b", "http://x", "host:9092", "-x", "x." * 200])
def test_what_is_no_host_is_refused(host: str) -> None:
    with refused(ValueError, "DNS"):
        checked_host(host)


@pytest.mark.parametrize(
    ("host", "address"),
    [("Example.ORG", "example.org:9092"), ("[2001:db8::1]", "[2001:db8::1]:9092")],
)
def test_sites_dial_the_first_host(host: str, address: str) -> None:
    assert Address(hosts=(host,), port=9092).address == address


def test_a_kit_holds_all_that_a_site_needs(folder: FederationFolder, tmp_path: Path) -> None:
    made = enrol_site(folder, "bob")
    kit = unpack_kit(made.kit, tmp_path)
    assert sorted(path.name for path in kit.iterdir()) == [
        "GUIDE.md",
        "ca.crt",
        "node.crt",
        "node.key",
        "site.toml",
    ]
    assert mode(kit) == 0o700
    assert mode(kit / "node.key") == 0o600
    site = load_site(kit / "site.toml")
    assert (site.name, site.coordinator.address) == ("bob", "erosion.example.org:9092")
    credentials = credentials_for(site.coordinator)
    tls = credentials.tls
    assert tls is not None
    # Of the two certificates the first to end is the next expiry, the authority's as well.
    swapped = replace(credentials, tls=replace(tls, root=tls.certificate, certificate=tls.root))
    assert credentials.expires == swapped.expires == made.key.expires
    assert tls.root == folder.authority.read_bytes()
    assert tls.certificate.decode() == made.key.certificate
    certificate = certificates.load_certificate(kit / "node.crt")
    certificate.verify_directly_issued_by(certificates.load_certificate(folder.authority))
    assert set(certificates.names_in(certificate)) == {"bob"}
    guide = (kit / "GUIDE.md").read_text()
    assert made.key.fingerprint in guide
    assert re.search(r"erosion\.example\.org.*9092", guide)
    assert "$" not in guide
    assert max(map(len, guide.splitlines())) <= 120


def test_a_renewal_pins_new_hospitals_and_replaces_no_key(
    folder: FederationFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    enrol_site(folder, "alice")
    kit = unpack_kit(enrol_site(folder, "bob").kit, tmp_path)
    before = read_pinned_keys(kit / "peers.pem", SiteError)
    enrol_site(folder, "carol")
    renew_site(folder, "alice", new_key=True)
    renewed = renew_site(folder, "bob").kit
    install = ["enroll", "install", str(renewed), str(kit / "site.toml")]
    assert main(install) == 0
    said = capsys.readouterr().out
    assert "  carol  " in said
    assert "--replace alice" in said
    pinned = read_pinned_keys(kit / "peers.pem", SiteError)
    assert set(pinned) == {"alice", "carol"}
    assert public_pem(pinned["alice"]) == public_pem(before["alice"])

    sent = tmp_path / "sent.pem"
    assert main(["enroll", "peers", "--folder", str(folder.path), "--out", str(sent)]) == 0
    pin = ["enroll", "pin", str(sent), str(kit / "site.toml")]
    assert main([*pin, "--replace", "alice"]) == 0
    now = read_pinned_keys(kit / "peers.pem", SiteError)
    assert public_pem(now["alice"]) == public_pem(read_pinned_keys(sent, SiteError)["alice"])
    assert main(pin) == 0
    assert main([*pin, "--replace", "dave"]) == 9
    assert "dave" in capsys.readouterr().err


def test_a_key_is_named_exactly_where_the_kit_has_none(
    folder: FederationFolder, tmp_path: Path
) -> None:
    key, place = tmp_path / "own.key", ["--folder", str(folder.path)]
    assert main(["enroll", "request", "bob", "--out", str(key)]) == 0
    assert main(["enroll", "sign", str(tmp_path / "own.csr"), *place]) == 0
    enrol_site(folder, "carol")
    for name, wrong, right in (
        ("bob", [], ["--key", str(key)]),
        ("carol", ["--key", str(key)], []),
    ):
        kit = folder.kit(name)
        site_file = unpack_kit(kit, tmp_path / f"of {name}") / "site.toml"
        before = {path.name: path.read_bytes() for path in site_file.parent.iterdir()}
        install = ["enroll", "install", str(kit), str(site_file)]
        assert main([*install, *wrong]) == 9
        assert {path.name: path.read_bytes() for path in site_file.parent.iterdir()} == before
        assert main([*install, *right]) == 0
        assert credentials_for(load_site(site_file).coordinator).tls is not None
        assert mode(site_file.with_name("node.key")) == 0o600


@pytest.mark.parametrize("out", ["node.csr", "."])
def test_a_request_never_takes_the_place_of_its_key(
    out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["enroll", "request", "bob", "--out", out]) == 9
    assert not list(tmp_path.iterdir())


def test_the_commands_of_the_documentation_enrol_renew_and_replace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / "docs" / "link.md").read_text().partition("## Who is let in")[2]
    blocks = re.findall(r"```sh\n(.*?)```", text.partition("\n## ")[0], re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    assert len(lines) == 8
    places = {where: tmp_path / where for where in ("coordinator", "site")}
    for place in places.values():
        place.mkdir()
    monkeypatch.chdir(places["coordinator"])
    assert main(["enroll", "init", "--host", "localhost"]) == 0
    for line in lines:
        command, _, comment = line.partition("# ")
        (where,) = (name for name in places if f"at the {name}" in comment)
        monkeypatch.chdir(places[where])
        if command.startswith("erosion"):
            assert main(shlex.split(command)[1:]) == 0, line
        else:
            subprocess.run(["sh", "-ec", command], check=True, timeout=PATIENCE)
        for sent in places["site"].glob("*.csr"):
            shutil.copy(sent, places["coordinator"])
        for kit in places["coordinator"].glob("federation/kits/*"):
            shutil.copy(kit, places["site"])
    site = places["site"] / "north"
    assert credentials_for(load_site(site / "site.toml").coordinator).tls is not None
    assert (site / "node.key").read_bytes() == (places["site"] / "new.key").read_bytes()
    admission = Authorizer(FederationFolder(places["coordinator"] / "federation"))
    assert isinstance(admission.verdict(certificates.load_certificate(site / "node.crt")), Admitted)


def commands_in(message: object) -> list[list[str]]:
    """The arguments of every `erosion` that a message names."""
    return [shlex.split(found) for found in re.findall(r"`erosion (.+?)`", str(message))]


@pytest.mark.parametrize("named_otherwise", [False, True])
def test_what_a_refusal_names_enrols_the_sites_own_key(
    tmp_path: Path, named_otherwise: bool
) -> None:
    folder = FederationFolder(tmp_path / "our federation")
    init_federation(folder, Address(hosts=HOSTS, port=9092))
    enrol_site(folder, "bob")
    keys = [new_private_key(), new_private_key()]
    said = "robert" if named_otherwise else "bob"
    first, second = (request_of(tmp_path / f"{n} of bob.csr", keys[n], said) for n in (0, 1))

    with pytest.raises(EnrolmentError) as already:
        enrol_site(folder, "bob", request=first)
    for command in commands_in(already.value):
        assert main(command) == 0
    current = read_key_registry(folder.roster).current("bob")
    assert current is not None
    assert current.fingerprint == fingerprint(keys[0].public_key())

    revoke_site(folder, "bob")
    with pytest.raises(EnrolmentError) as no_key:
        renew_site(folder, "bob", request=second)
    (command,) = commands_in(no_key.value)
    assert main(command) == 0
    current = read_key_registry(folder.roster).current("bob")
    assert current is not None
    assert current.fingerprint == fingerprint(keys[1].public_key())

    with pytest.raises(EnrolmentError) as no_key:
        renew_site(folder, "carol")
    (command,) = commands_in(no_key.value)
    assert main(command) == 0
    with pytest.raises(EnrolmentError) as already:
        enrol_site(folder, "carol")
    (command,) = commands_in(already.value)
    assert main([*command, "--new-key"]) == 0


def request_of(path: Path, key: ec.EllipticCurvePrivateKey, name: str = "bob") -> Path:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    path.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
    return path


def certificate_of(made: Enrolment) -> x509.Certificate:
    assert made.key.certificate is not None
    return x509.load_pem_x509_certificate(made.key.certificate.encode())


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "request"),
        (b"nonsense", "request"),
        (b"-----BEGIN CERTIFICATE REQUEST-----\n", "request"),
        (private_pem(new_private_key()), ".csr"),
        (ec.generate_private_key(ec.SECP256K1()), "P-256"),
    ],
)
def test_what_is_no_request_is_refused(
    folder: FederationFolder, tmp_path: Path, content: Any, named: str
) -> None:
    path = tmp_path / "node.csr"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        request_of(path, content)
    with refused(EnrolmentError, named):
        enrol_site(folder, "bob", request=path)
    if named == ".csr":  # a private key, which must not leave its site
        with refused(EnrolmentError, named):
            read_public_key(content, "public_key", EnrolmentError)


def test_one_key_is_one_hospitals(folder: FederationFolder, tmp_path: Path) -> None:
    path = request_of(tmp_path / "node.csr", new_private_key())
    enrol_site(folder, "bob", request=path)
    with refused(EnrolmentError, "bob"):
        enrol_site(folder, "carol", request=path)
    revoke_site(folder, "bob")
    with refused(EnrolmentError, "revoked"):
        enrol_site(folder, "bob", request=path)


def test_another_enrolment_is_waited_for_and_then_told_of(
    folder: FederationFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(federation_folder, "LONGEST_WAIT", 0.1)
    with folder.locked(), pytest.raises(EnrolmentError):
        enrol_site(folder, "north")
    enrol_site(folder, "north")


def test_a_disk_without_locks_is_named(
    folder: FederationFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def has_none(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", has_none)
    with pytest.raises(OSError, match=r"/\.lock"):
        enrol_site(folder, "bob")


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_kit_that_cannot_be_printed_changes_nothing(
    folder: FederationFolder, monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr("sys.stdout", full)
        monkeypatch.setattr(full, "isatty", lambda: is_terminal, raising=False)
        with pytest.raises(EnrolmentError):
            enrol_site(folder, "bob", out=Path("-"))
        monkeypatch.undo()
        with suppress(OSError):
            full.close()
    assert read_key_registry(folder.roster).keys == ()


def test_revoking_keeps_the_key_out_and_removes_the_kit(folder: FederationFolder) -> None:
    key = certificate_of(enrol_site(folder, "bob"))
    admission = Authorizer(folder)
    assert isinstance(admission.verdict(key), Admitted)
    assert admission.keys() == {"bob": certified_key(key)}
    revoke_site(folder, "bob")
    assert admission.keys() == {}
    verdict = admission.verdict(key)
    assert isinstance(verdict, NotAdmitted)
    assert (verdict.hospital, verdict.reason) == ("bob", Reason.REVOKED)
    assert not folder.kit("bob").exists()
    assert "revoked" in (admission.why_not("bob") or "")
    assert not admission.may_renew("bob")
    with pytest.raises(EnrolmentError):
        revoke_site(folder, "bob")


def test_a_renewal_leaves_a_kit_that_waits_for_its_hospital(
    folder: FederationFolder, tmp_path: Path
) -> None:
    """The key in it is nowhere else, and a renewal has no site file."""
    first = enrol_site(folder, "bob").kit
    before = first.read_bytes()
    renewed = renew_site(folder, "bob")
    assert first.read_bytes() == before
    site = load_site(unpack_kit(first, tmp_path) / "site.toml")
    assert install(renewed.kit, site).certificate.not_valid_after_utc == renewed.key.expires
    enrol_site(folder, "bob-renewal")  # no other hospital's kit is called as a renewal is
    assert renewed.kit.exists()
    revoke_site(folder, "bob")
    assert [kit.name for kit in first.parent.iterdir()] == ["bob-renewal.tar.gz"]


def test_no_private_key_is_written_over(
    folder: FederationFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ["--folder", str(folder.path)]
    kit = tmp_path / "kit.tar.gz"
    assert main(["enroll", "site", "bob", "--out", str(kit), *place]) == 0
    assert main(["enroll", "renew", "bob", "--new-key", *place]) == 0
    enrolled = folder.roster.read_bytes()
    renewal = folder.renewal("bob")
    kept = {path: path.read_bytes() for path in (kit, renewal, folder.authority_key)}
    for command in (
        ["renew", "bob"],
        ["renew", "bob", "--new-key"],
        ["renew", "bob", "--out", str(kit)],
        ["site", "carol", "--out", str(kit)],
        ["site", "carol", "--out", str(folder.authority_key)],
    ):
        capsys.readouterr()
        assert main(["enroll", *command, *place]) == 9
        assert "--out" in capsys.readouterr().err
        assert folder.roster.read_bytes() == enrolled
        assert {path: path.read_bytes() for path in kept} == kept
    renewal.unlink()  # it was handed over
    assert main(["enroll", "renew", "bob", *place]) == 0
    assert main(["enroll", "renew", "bob", *place]) == 0  # no key in the one of before


class FailsTwice:
    """Reads only at the third time, though the file stays the same: there was no free handle."""

    def __init__(self, read: Callable[[Path], Any]) -> None:
        self._read, self._times = read, 0

    def __call__(self, path: Path) -> Any:
        self._times += 1
        if self._times <= 2:
            raise EnrolmentError(f"{path.name} cannot be read: Too many open files.")
        return self._read(path)


def test_a_roster_that_could_not_be_read_once_is_read_later_and_the_log_says_it_once(
    folder: FederationFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    key = certificate_of(enrol_site(folder, "bob"))
    admission = Authorizer(folder)
    monkeypatch.setattr(admission_module, "read_key_registry", FailsTwice(read_key_registry))
    monkeypatch.setattr(certificates, "RETRY_SECONDS", 0.0)
    revoke_site(folder, "bob")
    verdicts = [admission.verdict(key) for _ in range(3)]
    assert [isinstance(verdict, Admitted) for verdict in verdicts] == [True, True, False]
    assert sum("roster.toml" in line for line in caplog.messages) == 1


def test_an_authority_that_is_no_certificate_any_more_leaves_the_one_before_in_force(
    folder: FederationFolder,
) -> None:
    shown = ServingCertificate(folder)
    before = shown.watched.value
    for damaged in (Path.touch, os.mkfifo):  # of a pipe, nothing ever comes
        folder.authority.unlink()
        damaged(folder.authority)
        assert not shown.watched.refresh()
        assert shown.watched.value is before
        with refused(EnrolmentError, "ca.crt"):
            ServingCertificate(folder)


def test_a_damaged_key_of_the_federation_comes_from_its_backup_and_from_no_kit(
    folder: FederationFolder,
) -> None:
    for key in (folder.authority_key, folder.coordinator):
        key.write_bytes(key.read_bytes()[:100])
    for read in (lambda: enrol_site(folder, "bob"), lambda: ServingCertificate(folder)):
        with refused(EnrolmentError, "backup"):
            read()


def test_renewing_prolongs_the_same_key(folder: FederationFolder, tmp_path: Path) -> None:
    expired = enrol_site(folder, "bob", days=-1)
    assert reason_of(folder, certificate_of(expired)) is Reason.EXPIRED
    assert Authorizer(folder).may_renew("bob")
    renewed = renew_site(folder, "bob")
    kit = unpack_kit(renewed.kit, tmp_path)
    assert sorted(path.name for path in kit.iterdir()) == ["ca.crt", "node.crt"]
    assert renewed.key.public_key == expired.key.public_key
    assert reason_of(folder, certificate_of(renewed)) is None
    assert reason_of(folder, certificate_of(expired)) is Reason.EXPIRED


def reason_of(folder: FederationFolder, certificate: x509.Certificate) -> Reason | None:
    """Why it is not admitted; None where it is."""
    verdict = Authorizer(folder).verdict(certificate)
    return verdict.reason if isinstance(verdict, NotAdmitted) else None


def test_a_new_key_replaces_the_old_one(folder: FederationFolder) -> None:
    old = certificate_of(enrol_site(folder, "bob"))
    new = certificate_of(renew_site(folder, "bob", new_key=True))
    assert [reason_of(folder, key) for key in (old, new)] == [Reason.REVOKED, None]
    assert Authorizer(folder).why_not("bob") is None
    revoke_site(folder, "bob")
    assert [reason_of(folder, key) for key in (old, new)] == [Reason.REVOKED] * 2


def test_a_certificate_for_another_name_than_the_keys_is_kept_out(folder: FederationFolder) -> None:
    made = enrol_site(folder, "bob")
    authority = certificates.load_authority(folder.authority_key, folder.authority)
    forged = certificates.issue_site(authority, "carol", made.key.key, made.key.expires)
    assert reason_of(folder, forged) is Reason.NAME


def test_a_renewal_is_installed_where_an_app_is_served_and_the_site_has_no_data(
    folder: FederationFolder, tmp_path: Path
) -> None:
    kit = unpack_kit(enrol_site(folder, "bob").kit, tmp_path)
    keys = 'root_certificate = "ca.crt"\ncertificate = "node.crt"\nprivate_key = "node.key"\n'
    (kit / "site.toml").write_text(
        f'name = "bob"\n[coordinator]\naddress = "a.example:9092"\n{keys}[app]\ntable = "x"\n'
    )
    site_file, certificate = (kit / name for name in ("site.toml", "node.crt"))
    texts = site_file.read_bytes(), certificate.read_bytes()
    renewed = renew_site(folder, "bob", days=500)
    assert main(["enroll", "install", str(renewed.kit), str(site_file)]) == 0
    assert certificate.read_bytes() != texts[1]
    assert site_file.read_bytes() == texts[0]


def test_what_does_not_fit_the_site_is_not_installed(
    folder: FederationFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kit = unpack_kit(enrol_site(folder, "bob").kit, tmp_path)
    before = {path.name: path.read_bytes() for path in kit.iterdir()}
    other = FederationFolder(tmp_path / "other")
    init_federation(other, Address(hosts=HOSTS, port=9092))
    strange = enrol_site(other, "bob").kit
    enrol_site(folder, "carol")
    carols = renew_site(folder, "carol").kit  # without a key
    two = with_another_authority(renew_site(folder, "bob").kit, other, tmp_path)
    assert main(["enroll", "request", "bob", "--out", str(tmp_path / "other.key")]) == 0
    request = tmp_path / "other.csr"
    bobs_other = renew_site(folder, "bob", request=request, out=tmp_path / "other.tar.gz").kit
    (tmp_path / "no.tar.gz").write_bytes(b"no archive")
    davids = enrol_site(folder, "david").kit  # with a key
    for wrong, why in (
        (davids, "david"),
        (two, "2"),
        (strange, "authority"),
        (carols, "carol"),
        (bobs_other, "key"),
        (tmp_path / "no.tar.gz", "no.tar.gz"),
        (tmp_path / "missing", "missing"),
        (archive_of(tmp_path / "few.tar.gz", [("notes", b"x")]), "ca.crt"),
    ):
        assert main(["enroll", "install", str(wrong), str(kit / "site.toml")]) == 9
        assert why in capsys.readouterr().err
        assert {path.name: path.read_bytes() for path in kit.iterdir()} == before
    install = ["enroll", "install", str(strange), str(kit / "site.toml"), "--new-authority"]
    site = load_site(kit / "site.toml")
    records = Records.of(site)
    running = RunningSite(
        kit / "site.toml", site, records, secret=b"", version=version_of(kit / "site.toml")
    )
    former = running.coordinator
    assert not running.line.is_renewed()
    capsys.readouterr()
    assert main(install) == 0
    assert "budget.runs_per_study" in capsys.readouterr().out  # counted from 0
    assert known_as(credentials_for(site.coordinator)) != former  # by which its book counts
    assert running.line.is_renewed()
    running.connect()
    assert not running.line.is_renewed()
    assert running.coordinator == known_as(credentials_for(site.coordinator))
    records.close()
    assert main(install) == 0
    assert "budget.runs_per_study" not in capsys.readouterr().out


def archive_of(to: Path, files: Iterable[tuple[str, bytes]], mode: Any = "w:gz") -> Path:
    with tarfile.open(to, mode) as archive:
        for name, content in files:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return to


def test_a_kit_that_a_browser_unpacked_by_half_is_installed(
    folder: FederationFolder, tmp_path: Path
) -> None:
    kit = enrol_site(folder, "bob").kit
    site = load_site(unpack_kit(kit, tmp_path) / "site.toml")
    half = tmp_path / "bob.tar"
    half.write_bytes(gzip.decompress(kit.read_bytes()))
    assert len(install(half, site).files) == 3


@pytest.mark.parametrize("mode", ["w:gz", "w:xz", "w:"])
def test_a_small_kit_fills_no_memory(folder: FederationFolder, tmp_path: Path, mode: str) -> None:
    site = load_site(unpack_kit(enrol_site(folder, "bob").kit, tmp_path) / "site.toml")
    zeros = bytes(2**20)
    many = [(f"zeros {number}", zeros) for number in range(64)]
    named = [("kit/" + "x" * 2**25, b"")]
    for number, files in enumerate((many, named)):
        wrong = archive_of(tmp_path / f"{number}.tar", files, mode)
        tracemalloc.start()
        with pytest.raises(EnrolmentError):
            install(wrong, site)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < wrong.stat().st_size * 2 + 2**25


def with_own_authorities(
    folder: FederationFolder, *hospitals: str
) -> dict[str, certificates.Authority]:
    """Write the certificates of these hospitals' own authorities, of which the place knows now."""
    made = {hospital: certificates.new_authority() for hospital in hospitals}
    for hospital, authority in made.items():
        content = certificates.pem(authority.certificate)
        (folder.path / f"{hospital}-ca.crt").write_bytes(content)
    own = {
        hospital: {"certificate": f"{hospital}-ca.crt", "name": f"site.{hospital}.example"}
        for hospital in hospitals
    }
    place = {**folder.read_place().model_dump(), "authorities": own}
    folder.write_place(Address.model_validate(place))
    return made


def issued(authority: certificates.Authority, name: str) -> x509.Certificate:
    """A certificate of five days by that authority."""
    ends = expiry.now() + timedelta(days=5)
    return certificates.issue_site(authority, name, new_private_key().public_key(), ends)


def test_a_hospital_may_have_an_authority_of_its_own(folder: FederationFolder) -> None:
    admission = Authorizer(folder)
    enrolled = certificate_of(enrol_site(folder, "north"))
    assert isinstance(admission.verdict(enrolled), Admitted)
    own = with_own_authorities(folder, "north", "south")
    norths = issued(own["north"], "site.north.example")
    admitted = admission.verdict(norths)  # noticed without a restart
    assert isinstance(admitted, Admitted)
    assert admitted.hospital == "north"
    assert admission.why_not("north") is None
    for stranger in (
        enrolled,  # nobody else vouches for it any more
        issued(own["north"], "site.south.example"),  # nor it for another
        issued(own["south"], "site.north.example"),
        issued(own["north"], "else.example"),
    ):
        assert isinstance(admission.verdict(stranger), NotAdmitted)
    assert b"BEGIN CERTIFICATE" in read_own_authorities(folder).pem
    shown = ServingCertificate(folder)
    while shown.watched.refresh():
        pass
    with_own_authorities(folder, "north", "south")  # the hospital has replaced it
    assert isinstance(admission.verdict(norths), NotAdmitted)
    assert shown.watched.refresh()


@pytest.mark.parametrize("is_enrolled", [False, True])
def test_revoking_keeps_out_what_a_hospitals_own_authority_certifies(
    folder: FederationFolder, capsys: pytest.CaptureFixture[str], is_enrolled: bool
) -> None:
    if is_enrolled:
        enrol_site(folder, "north")
    own = with_own_authorities(folder, "north", "south")
    north, south = (issued(own[name], f"site.{name}.example") for name in ("north", "south"))
    admission = Authorizer(folder)
    assert isinstance(admission.verdict(north), Admitted)
    assert main(["enroll", "revoke", "north", "--folder", str(folder.path)]) == 0
    assert "authorities.north" in capsys.readouterr().out
    assert isinstance(admission.verdict(north), NotAdmitted)
    assert admission.why_not("north") is not None
    assert isinstance(admission.verdict(south), Admitted)
    with pytest.raises(EnrolmentError):
        revoke_site(folder, "north")


def test_the_authoritys_key_is_used_by_its_passphrase_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = FederationFolder(tmp_path / "federation")
    command = ["enroll", "init", "--host", "localhost", "--folder", str(folder.path)]
    monkeypatch.setenv(certificates.PASSPHRASE, "too short")
    assert main(command) == 9
    assert not folder.path.exists()
    monkeypatch.setenv(certificates.PASSPHRASE, "correct horse battery")
    assert main(command) == 0
    assert b"ENCRYPTED" in folder.authority_key.read_bytes()
    enrol_site(folder, "bob")
    monkeypatch.setenv(certificates.PASSPHRASE, "incorrect horse battery")
    with refused(EnrolmentError, "passphrase"):
        enrol_site(folder, "carol")
    monkeypatch.delenv(certificates.PASSPHRASE)
    with refused(EnrolmentError, certificates.PASSPHRASE):  # nobody is at a terminal
        enrol_site(folder, "carol")
    ServingCertificate(folder)  # a coordinator starts without it
    (tmp_path / "secret").write_bytes(b"correct horse battery\r\n")  # an editor of Windows
    monkeypatch.setenv(f"{certificates.PASSPHRASE}_FILE", str(tmp_path / "secret"))
    enrol_site(folder, "carol")
    monkeypatch.setenv(f"{certificates.PASSPHRASE}_FILE", str(tmp_path / "none"))
    with refused(EnrolmentError, "none"):
        renew_coordinator(folder)


def test_a_passphrase_is_typed_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = iter(["correct horse battery", "correct horse batery"] + 2 * ["correct horse battery"])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("erosion_common.support.keys.getpass", lambda _prompt: next(typed))
    command = ["enroll", "init", "--host", "localhost", "--folder", str(tmp_path / "federation")]
    assert main(command) == 9
    assert main(command) == 0


def test_a_kits_password_is_taken_off_by_openssl_or_when_it_is_installed(
    folder: FederationFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = enrol_site(folder, "bob", has_password=True)
    home = unpack_kit(made.kit, tmp_path)
    key, site_file = home / "node.key", home / "site.toml"
    remedy = f"openssl pkey -in {key} -out {key}.open && mv {key}.open {key}"
    with refused(SiteError, remedy):
        credentials_for(load_site(site_file).coordinator)
    typed = remedy.replace(" && ", f" -passin pass:{made.password} && ")
    subprocess.run(typed, shell=True, check=True, timeout=PATIENCE)
    assert mode(key) == 0o600
    credentials_for(load_site(site_file).coordinator)
    older = (
        f"openssl ec -aes256 -passout pass:other -in {key} -out {key}.older && mv {key}.older {key}"
    )
    subprocess.run(older, shell=True, check=True, timeout=PATIENCE)
    with refused(SiteError, remedy):
        credentials_for(load_site(site_file).coordinator)

    renewal = renew_site(folder, "bob", new_key=True, has_password=True)
    for password in ("", made.password):
        monkeypatch.setenv("EROSION_KIT_PASSWORD", password)
        with refused(EnrolmentError, "node.key"):
            install(renewal.kit, load_site(site_file))
    monkeypatch.setenv("EROSION_KIT_PASSWORD", renewal.password)
    install(renewal.kit, load_site(site_file))
    assert b"ENCRYPTED" not in key.read_bytes()
    assert renewal.password not in repr(renewal)


@pytest.mark.parametrize("in_its_place", [None, ""])
def test_an_authority_that_is_kept_elsewhere_is_asked_for(
    in_its_place: str | None, folder: FederationFolder
) -> None:
    folder.authority_key.unlink()
    if in_its_place is not None:  # as the containers' coordinator needs it
        folder.authority_key.write_text(in_its_place)
    ServingCertificate(folder)  # needs no signature
    with refused(EnrolmentError, "ca.key"):
        enrol_site(folder, "bob")
    with refused(EnrolmentError, "ca.key"):
        renew_coordinator(folder)


def test_a_coordinator_does_not_start_with_an_expired_or_an_open_key(
    folder: FederationFolder,
) -> None:
    folder.coordinator.chmod(0o644)
    with refused(EnrolmentError, "chmod 600"):
        make_link(["bob"], "127.0.0.1:0", folder)
    renew_coordinator(folder, days=-0.5)
    with refused(EnrolmentError, "renew coordinator"):
        make_link(["bob"], "127.0.0.1:0", folder)


def test_what_will_soon_keep_a_hospital_out_is_said_at_the_start(
    folder: FederationFolder, caplog: pytest.LogCaptureFixture
) -> None:
    enrol_site(folder, "bob", days=20)
    enrol_site(folder, "carol")
    renew_coordinator(folder, days=10)

    def said_of(hospitals: list[str]) -> list[list[str]]:
        caplog.clear()
        make_link(hospitals, "127.0.0.1:0", folder)
        said = [each.getMessage() for each in caplog.records if each.name == "erosion.admission"]
        return [shlex.split(line.partition(" run: erosion ")[2]) for line in said]

    of_a_queue = said_of([])  # which knows no study's hospitals yet
    assert [command[1:3] for command in of_a_queue] == [["renew", "coordinator"], ["renew", "bob"]]
    commands = said_of(["bob", "carol", "dave"])
    assert [command[1:3] for command in commands] == [
        ["renew", "coordinator"],
        ["renew", "bob"],
        ["site", "dave"],
    ]
    assert [main(command) for command in commands] == [0, 0, 0]


def test_secrets_are_in_no_repr(folder: FederationFolder, tmp_path: Path) -> None:
    made = enrol_site(folder, "bob")
    kit = unpack_kit(made.kit, tmp_path)
    things = [
        certificates.load_authority(folder.authority_key, folder.authority),
        certificates.load_identity(folder.coordinator),
        credentials_for(load_site(kit / "site.toml").coordinator),
        read_key_registry(folder.roster),
        made,
    ]
    secrets = [
        path.read_text().splitlines()[1]
        for path in (folder.authority_key, folder.coordinator, kit / "node.key")
    ]
    for thing in things:
        text = repr(thing)
        assert "PRIVATE" not in text
        assert not any(secret in text for secret in secrets)


def test_a_roster_that_is_damaged_is_refused_and_left(folder: FederationFolder) -> None:
    enrol_site(folder, "bob")
    text = folder.roster.read_text()
    folder.roster.write_text(text + text.partition("\n\n")[2])
    with refused(EnrolmentError, "bob"):
        Authorizer(folder)
    folder.roster.write_bytes(b"")
    with refused(EnrolmentError, "roster.toml"):
        enrol_site(folder, "carol")
    assert folder.roster.read_bytes() == b""


def test_a_newer_roster_is_refused_with_the_version_that_is_here(folder: FederationFolder) -> None:
    folder.roster.write_text("format = 2\n")
    with refused(EnrolmentError, f"format = 2; erosion {software_version()} reads 1"):
        read_key_registry(folder.roster)


def test_a_roster_that_was_cut_off_lets_no_revoked_key_in(folder: FederationFolder) -> None:
    enrol_site(folder, "north")
    revoke_site(folder, "north")
    whole = folder.roster.read_bytes()
    for num_bytes in range(0, len(whole), 7):
        folder.roster.write_bytes(whole[:num_bytes])
        with suppress(EnrolmentError):
            assert read_key_registry(folder.roster).current("north") is None, num_bytes


@pytest.mark.filterwarnings("ignore:Parsed a serial number")
def test_a_damaged_certificate_of_the_authority_is_put_into_no_kit(
    folder: FederationFolder,
) -> None:
    certificate = x509.load_pem_x509_certificate(folder.authority.read_bytes())
    whole = certificate.public_bytes(Encoding.DER)
    accepted = []
    for bit in range(0, 8 * len(whole), 13):  # of its version, its algorithms, its names ...
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        folder.authority.write_text(ssl.DER_cert_to_PEM_cert(bytes(content)))
        with suppress(EnrolmentError):
            accepted.append(certificates.load_authority(folder.authority_key, folder.authority))
    assert len(accepted) < 5  # of bits that the signature is not of
    assert {each.certificate.tbs_certificate_bytes for each in accepted} <= {
        certificate.tbs_certificate_bytes
    }
    with refused(EnrolmentError, "ca.crt", "ca.key"):
        enrol_site(folder, "bob")  # the last bit is one of the signature
    assert not folder.kit("bob").exists()


def test_the_hosts_are_asked_for_on_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path / "asked")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda _prompt: "one.example.org, 192.0.2.1")
    monkeypatch.setattr("erosion_common.support.keys.getpass", lambda _prompt: "")
    assert main(["enroll", "init", "--folder", folder]) == 0
    assert "one.example.org:9092" in capsys.readouterr().out
    assert FederationFolder(Path(folder)).read_place().hosts == ("one.example.org", "192.0.2.1")

    def ended(_prompt: str) -> str:
        raise EOFError

    monkeypatch.setattr("builtins.input", ended)
    assert main(["enroll", "init", "--folder", str(tmp_path / "not answered")]) == 9


def test_the_list_shows_who_is_enrolled_who_no_more_and_who_has_an_authority_of_its_own(
    folder: FederationFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    for name in ("bob", "carol", "north"):
        enrol_site(folder, name)
    revoke_site(folder, "carol")
    renew_site(folder, "bob", days=10)
    own = with_own_authorities(folder, "north", "south")
    (folder.path / "south-ca.crt").unlink()
    assert main(["enroll", "list", "--folder", str(folder.path)]) == 0
    said = capsys.readouterr().out
    rows = [line for line in said.splitlines() if "│" in line]
    assert any("bob" in row and "(10 days)" in row for row in rows)
    assert any("carol" in row and "revoked" in row for row in rows)
    key, north = [row for row in rows if "│ north" in row]
    assert "authority" in key
    assert "site.north.example" in north
    assert certificate_fingerprint(own["north"].certificate) in north
    assert "south" in said


@pytest.mark.parametrize(
    "odd", [*[("--days", days) for days in ("nan", "inf", "1e9", "0", "-1")], ("--port", "99999")]
)
def test_a_number_that_cannot_be_is_named_and_nothing_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], odd: tuple[str, str]
) -> None:
    folder = tmp_path / "federation"
    with pytest.raises(SystemExit):
        main(["enroll", "init", "--host", "a.example", "--folder", str(folder), *odd])
    assert odd[1] in capsys.readouterr().err
    assert not folder.exists()


def test_other_names_for_the_coordinator_say_which_are_dropped_and_drop_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = FederationFolder(tmp_path / "federation")
    own = {"carol": OwnAuthority(certificate=Path("carol.crt"), name="carol.example")}
    init_federation(folder, Address(hosts=("a.example", "b.example"), port=1, authorities=own))
    (folder.path / "carol.crt").write_bytes(folder.authority.read_bytes())
    place = ["--folder", str(folder.path)]
    assert main(["enroll", "renew", "coordinator", "--host", "b.example", "c.example", *place]) == 0
    said = capsys.readouterr().out
    assert "a.example" in said
    assert "b.example:1" in said
    assert folder.read_place().authorities == own
    assert main(["enroll", "init", "--host", "a.example", *place]) == 9
    assert str(folder.path) in "".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("name", ["Bob", "../bob", "", "all", "none", "coordinator", "nul", "com1"])
def test_a_name_that_cannot_be_a_hospitals_is_refused(folder: FederationFolder, name: str) -> None:
    with pytest.raises(EnrolmentError):
        enrol_site(folder, name)
    with refused(ValueError):
        checked_hospital(name)
    values = {"name": name, "data": {"path": "b.csv"}, "coordinator": {"address": "h:1"}}
    with refused(ValueError):
        Site.model_validate(values)
