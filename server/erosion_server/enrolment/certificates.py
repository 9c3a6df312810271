"""The federation's authority, certificates of coordinator and sites, hospitals' own authorities."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from erosion_common.errors import EnrolmentError
from erosion_common.support import expiry, keys
from erosion_common.support.files import read_named, version_of
from erosion_common.support.keys import PrivateKey, PublicKey
from erosion_server.enrolment.federation_folder import FederationFolder, OwnAuthority

logger = logging.getLogger("erosion.admission")


AUTHORITY_DAYS = 3650  # every site has to be visited to replace it
COORDINATOR_DAYS = 90

BACKDATED = timedelta(days=1)  # for machines with a clock that is behind
RETRY_SECONDS = 1.0  # before files that could not be read are tried again
MOST_COMMON_NAME = 64  # characters, by X.520; the alternative name is never cut
SITE_URI = "urn:erosion:site:"  # a site's name in its certificate, where any name fits


@dataclass(frozen=True, slots=True)
class Authority:
    """Anyone with the key can pose as the coordinator and as any site."""

    key: PrivateKey = field(repr=False)
    certificate: x509.Certificate


@dataclass(frozen=True, slots=True)
class Identity:
    """What the coordinator shows to sites."""

    key: bytes = field(repr=False)  # PEM
    certificate: bytes  # PEM


def new_authority() -> Authority:
    """Return an authority for one federation, which can make no further authorities."""
    key = keys.new_private_key()
    # A distinct name: two authorities with one name give misleading TLS errors.
    serial = x509.random_serial_number()
    name = _name(f"Erosion federation {serial & 0xFFFFFFFF:08x}")
    expires = expiry.now() + timedelta(days=AUTHORITY_DAYS)
    builder = _certificate(name, name, key.public_key(), serial, expires, is_authority=True)
    return Authority(key, builder.sign(key, hashes.SHA256()))


def issue(authority: Authority, hosts: Sequence[str], days: float) -> Identity:
    """Return a new key and certificate for a coordinator that sites reach by any of `hosts`."""
    key = keys.new_private_key()
    certificate = _issued(
        authority,
        "Erosion coordinator",
        key.public_key(),
        [_host(h) for h in hosts],
        ExtendedKeyUsageOID.SERVER_AUTH,
        expiry.now() + timedelta(days=days),
    )
    return Identity(keys.private_pem(key), pem(certificate))


def issue_site(
    authority: Authority, hospital: str, key: PublicKey, expires: datetime
) -> x509.Certificate:
    """Return the certificate by which the holder of `key` connects as `hospital`."""
    name = x509.UniformResourceIdentifier(SITE_URI + hospital)
    return _issued(authority, hospital, key, [name], ExtendedKeyUsageOID.CLIENT_AUTH, expires)


def names_in(certificate: x509.Certificate) -> Iterator[str]:
    """Every name that a certificate is for: its common names and its alternative names."""
    for attribute in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME):
        yield str(attribute.value)
    for name in _alternative_names(certificate):
        if isinstance(name.value, str):
            yield name.value.removeprefix(SITE_URI)


def _alternative_names(certificate: x509.Certificate) -> Sequence[x509.GeneralName]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (x509.ExtensionNotFound, *keys.ODD_CERTIFICATE):
        return ()
    return tuple(found.value)


def _issued(
    authority: Authority,
    subject: str,
    key: PublicKey,
    names: Sequence[x509.GeneralName],
    usage: x509.ObjectIdentifier,
    expires: datetime,
) -> x509.Certificate:
    issuer, name = authority.certificate, _name(subject[:MOST_COMMON_NAME])
    its_key = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    from_its_key = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(its_key)
    builder = _certificate(name, issuer.subject, key, x509.random_serial_number(), expires)
    alternative = x509.SubjectAlternativeName(names)
    for extension in (x509.ExtendedKeyUsage([usage]), alternative, from_its_key):
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(authority.key, hashes.SHA256())


def pem(certificate: x509.Certificate) -> bytes:
    """Return a certificate as text."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def load_certificate(path: Path) -> x509.Certificate:
    """Return the first certificate in a PEM file; raises EnrolmentError."""
    try:
        return keys.certificate_in(read_named(path))
    except (OSError, ValueError) as problem:
        raise EnrolmentError(
            f"The certificate {path} cannot be read ({problem})", remedy=_RESTORE
        ) from None


def load_authority(key: Path, certificate: Path) -> Authority:
    """Return the authority; raises EnrolmentError, also where its key is kept elsewhere."""
    if not key.exists() or not key.stat().st_size:  # a container may need a file in its place
        raise EnrolmentError(
            f"The authority's key is not at {key}",
            remedy="If it is kept on another medium, bring it back for as long as this takes.",
        )
    own = keys.load_private_key(key, EnrolmentError, _RESTORE, lambda: _passphrase(key))
    vouched = load_certificate(certificate)
    if not keys.is_issued_by(vouched, vouched) or keys.certified_key(vouched) != own.public_key():
        raise EnrolmentError(
            f"The certificate {certificate} is damaged, or not that of {key}",
            remedy="Restore both from one backup.",
        )
    return Authority(own, vouched)


def load_identity(path: Path) -> Identity:
    """Return the coordinator's key and certificate; raises EnrolmentError."""
    key = keys.load_private_key(path, EnrolmentError, _RESTORE)
    return Identity(keys.private_pem(key), pem(load_certificate(path)))


PASSPHRASE = "EROSION_CA_PASSPHRASE"  # or PASSPHRASE_FILE; it is never on the command line
SHORTEST_PASSPHRASE = 12  # characters
_RESTORE = "Restore it from the backup."


def _passphrase(key: Path) -> str:
    if not (said := keys.secret(PASSPHRASE, f"Passphrase of {key}: ")):
        raise EnrolmentError(
            f"The authority's key {key} has a passphrase, and nobody can be asked for it",
            remedy=f"Run this in a terminal, or set {PASSPHRASE} or {PASSPHRASE}_FILE.",
        )
    return said


def chosen_passphrase() -> str:
    """Return the passphrase for a new authority's key; "" for none. Raises EnrolmentError."""
    try:
        said = keys.secret(PASSPHRASE, "A passphrase for the authority's key (empty: none): ")
        again = keys.secret(PASSPHRASE, "The same again: ") if said else ""
    except (OSError, ValueError) as problem:
        raise EnrolmentError(f"{PASSPHRASE}_FILE cannot be read: {problem}.") from None
    if said != again:
        raise EnrolmentError("The two are not the same. Nothing was made; try again.")
    if said and len(said) < SHORTEST_PASSPHRASE:
        raise EnrolmentError(f"A passphrase has {SHORTEST_PASSPHRASE} characters or more.")
    return said


def validity_in_words(certificate: x509.Certificate) -> str:
    """Return the hospital that a certificate names, and its last day."""
    hosts = [str(name.value) for name in _alternative_names(certificate)]
    return f"for {', '.join(hosts)}, {expiry.in_words(certificate.not_valid_after_utc)}"


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: PublicKey,
    serial: int,
    expires: datetime,
    *,
    is_authority: bool = False,
) -> x509.CertificateBuilder:
    # One that expires in the past is made by those who test what then happens.
    start = min(expiry.now(), expires) - BACKDATED
    constraints = x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None)
    usage = x509.KeyUsage(
        digital_signature=not is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        x509.CertificateBuilder(issuer, subject, key, serial, start, expires)
        .add_extension(constraints, critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


_REMEDY = "The site makes one with `erosion enroll request NAME`, which writes node.csr."


class SigningRequest(NamedTuple):
    """The hospital that a request names, and the key."""

    hospital: str
    key: PublicKey


def read_request(path: Path) -> SigningRequest:
    """Raises EnrolmentError, also where the file holds a private key by mistake."""
    try:
        pem = read_named(path)
    except OSError as problem:
        raise EnrolmentError(
            f"The request {path} cannot be read: {problem.strerror}", remedy="Check the path."
        ) from None
    keys.check_is_public(pem, path, EnrolmentError)
    try:
        request = x509.load_pem_x509_csr(pem)
        key, is_theirs = request.public_key(), request.is_signature_valid
    except Exception:  # noqa: BLE001 - the library may raise anything on a foreign file
        raise EnrolmentError(
            f"{path} holds no certificate request in PEM", remedy=_REMEDY
        ) from None
    if not is_theirs:
        raise EnrolmentError(f"The request {path} is not signed by its own key", remedy=_REMEDY)
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, keys.CURVES):
        raise EnrolmentError(f"The key of {path} is not on P-256 or P-384", remedy=_REMEDY)
    names = request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return SigningRequest(str(names[0].value) if names else "", key)


class OwnAuthorities(NamedTuple):
    """One for each hospital that has its own: none of them can vouch for another hospital."""

    by_hospital: Mapping[str, tuple[str, Sequence[x509.Certificate]]]  # the name in its site's
    # certificate, and who may have issued that
    pem: bytes  # all of them, for the TLS handshake
    files: tuple[Path, ...]  # from which they were read

    def hospital_of(self, certificate: x509.Certificate) -> str | None:
        """Return the hospital that `certificate` is for; None where it is for none."""
        names = set(names_in(certificate))
        for hospital, (name, issuers) in self.by_hospital.items():
            if name in names and any(keys.is_issued_by(certificate, issuer) for issuer in issuers):
                return hospital
        return None


def read_own_authorities(folder: FederationFolder) -> OwnAuthorities:
    """Return the authorities that `federation.toml` names. Raises EnrolmentError."""
    owns = folder.read_place().authorities
    read = {hospital: read_own_authority(folder, hospital, own) for hospital, own in owns.items()}
    return OwnAuthorities(
        {hospital: (owns[hospital].name, issuers) for hospital, (issuers, _) in read.items()},
        b"\n".join(pem for _, pem in read.values()),
        tuple(folder.path / own.certificate for own in owns.values()),
    )


def read_own_authority(
    folder: FederationFolder, hospital: str, own: OwnAuthority
) -> tuple[Sequence[x509.Certificate], bytes]:
    """Return one hospital's: its certificates, and the file itself. Raises EnrolmentError."""
    path = folder.path / own.certificate
    try:
        pem = read_named(path)
        return keys.certificates_in(pem), pem
    except (OSError, ValueError) as problem:
        raise EnrolmentError(
            f"the authority of {hospital}: {getattr(problem, 'strerror', problem)}",
            where=str(path),
            remedy="Put the certificate of the authority that signs its site's certificate there,"
            f" or take authorities.{hospital} out of federation.toml.",
        ) from None


T = TypeVar("T")


class Watched(Generic[T]):
    """What is read from files, again when they change. A damaged file changes nothing."""

    def __init__(self, what: str, read: Callable[[], tuple[T, Sequence[Path]]]) -> None:
        """Read it. `read` returns the value and its files; raises EnrolmentError, OSError."""
        self._what, self._read = what, read
        self._lock = threading.Lock()
        self._problem, self._tried = "", 0.0  # with the latest reading, and when that was
        _, self._files = read()
        self._seen = self._versions()  # before the value is read, so that no change is missed
        self._value, _ = read()

    @property
    def value(self) -> T:
        """As the files say now."""
        self.refresh()
        return self._value

    def refresh(self) -> bool:
        """Read the files if they have changed; False where the value stays."""
        if self._versions() == self._seen:
            return False
        with self._lock:
            if self._problem and time.monotonic() - self._tried < RETRY_SECONDS:
                return False
            seen = self._versions()
            try:
                self._value, self._files = self._read()
            except (EnrolmentError, OSError) as problem:
                if str(problem) != self._problem:
                    logger.error("%s stays as it was: %s", self._what, problem)
                self._problem, self._tried = str(problem), time.monotonic()
                return False
            self._seen, self._problem = seen, ""
        logger.info("read again: %s", self._what)
        return True

    def _versions(self) -> tuple[object, ...]:
        return tuple(map(version_of, self._files))


class _Shown(NamedTuple):
    certificate: x509.Certificate  # the coordinator's
    configuration: grpc.ServerCertificateConfiguration  # with the authorities that it accepts


class ServingCertificate:
    """Read again when the federation's files have changed, at the next connection at the latest."""

    def __init__(self, folder: FederationFolder) -> None:
        """Raises EnrolmentError where it cannot be read or has expired."""
        self._folder = folder
        self.watched = Watched("the coordinator's certificate", self._load)
        if expiry.has_ended(self.expires):
            raise EnrolmentError(f"No site would accept {folder.coordinator}: {self.trouble}.")

    @property
    def expires(self) -> datetime:
        """When sites stop accepting it."""
        return self.watched.value.certificate.not_valid_after_utc

    @property
    def trouble(self) -> str | None:
        """Why it is no good, or this machine's clock is wrong, and the remedy; None where it is."""
        begins, now = self.watched.value.certificate.not_valid_before_utc, expiry.now()
        if expiry.has_ended(self.expires):
            return (
                f"the coordinator's certificate {expiry.in_words(self.expires)}, and it is"
                f" {now:%Y-%m-%d} by this machine's clock; set the clock if it is wrong, else run:"
                f" erosion enroll renew coordinator{self._folder.option}"
            )
        if now < begins:
            return (
                f"the coordinator's certificate is valid from {begins:%Y-%m-%d} on, and it is"
                f" {now:%Y-%m-%d} by this machine's clock, which lets no site in: set it by NTP"
            )
        return None

    @property
    def words(self) -> str:
        """For which names it is, and until when."""
        return validity_in_words(self.watched.value.certificate)

    def credentials(self, *, on_handshake: Callable[[], None]) -> grpc.ServerCredentials:
        """Return a gRPC server's; `on_handshake` is called when a connection begins."""
        handed = self.watched.value

        def latest() -> grpc.ServerCertificateConfiguration | None:
            nonlocal handed
            on_handshake()
            before, handed = handed, self.watched.value
            return None if handed is before else handed.configuration

        return grpc.dynamic_ssl_server_credentials(
            handed.configuration, latest, require_client_authentication=True
        )

    def _load(self) -> tuple[_Shown, Sequence[Path]]:
        folder = self._folder
        identity, own = load_identity(folder.coordinator), read_own_authorities(folder)
        load_certificate(folder.authority)  # gRPC says nothing of a file without one
        configuration = grpc.ssl_server_certificate_configuration(
            [(identity.key, identity.certificate)],
            root_certificates=read_named(folder.authority) + own.pem,
        )
        certificate = x509.load_pem_x509_certificate(identity.certificate)
        files = (folder.coordinator, folder.authority, folder.place, *own.files)
        return _Shown(certificate, configuration), files
