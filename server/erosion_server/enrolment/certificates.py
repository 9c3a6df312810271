"""The federation's authority, certificates of coordinator and sites, hospitals' own authorities."""

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from erosion_common.errors import EnrolmentError
from erosion_common.support import expiry
from erosion_common.support.files import read_named, version_of
from erosion_common.support.keys import (
    CURVES,
    ODD_CERTIFICATE,
    PrivateKey,
    PublicKey,
    certificate_in,
    certificates_in,
    certified_key,
    is_issued_by,
    load_private_key,
    new_private_key,
    private_pem,
)
from erosion_server.enrolment.federation_folder import FederationFolder, OwnAuthority

logger = logging.getLogger("erosion.admission")


AUTHORITY_DAYS = 3650  # every site has to be visited to replace it
COORDINATOR_DAYS = 90

BACKDATED = timedelta(days=1)  # for machines with a clock that is behind
MOST_COMMON_NAME = 64  # characters, by X.520; the alternative name is never cut
SITE_URI = "urn:erosion:site:"  # a site's name in its certificate, where any name fits

_NO_USAGE = dict.fromkeys(
    (
        "digital_signature",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "key_cert_sign",
        "crl_sign",
        "encipher_only",
        "decipher_only",
    ),
    False,
)


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
    key = new_private_key()
    # A distinct name: two authorities with one name give misleading TLS errors.
    serial = x509.random_serial_number()
    name = _name(f"Erosion federation {serial & 0xFFFFFFFF:08x}")
    builder = (
        _certificate(
            name,
            name,
            key.public_key(),
            serial,
            expiry.now() + timedelta(days=AUTHORITY_DAYS),
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.KeyUsage(**{**_NO_USAGE, "key_cert_sign": True, "crl_sign": True}), critical=True
        )
        .add_extension(_key_identifier(key.public_key()), critical=False)
    )
    return Authority(key, builder.sign(key, hashes.SHA256()))


def issue(authority: Authority, hosts: Sequence[str], days: float) -> Identity:
    """Return a new key and certificate for a coordinator that sites reach by any of `hosts`."""
    key = new_private_key()
    certificate = _issued(
        authority,
        "Erosion coordinator",
        key.public_key(),
        [_host(h) for h in hosts],
        ExtendedKeyUsageOID.SERVER_AUTH,
        expiry.now() + timedelta(days=days),
    )
    return Identity(private_pem(key), pem(certificate))


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
    except (x509.ExtensionNotFound, *ODD_CERTIFICATE):
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
    issuer = authority.certificate
    builder = (
        _certificate(
            _name(subject[:MOST_COMMON_NAME]),
            issuer.subject,
            key,
            x509.random_serial_number(),
            expires,
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(**{**_NO_USAGE, "digital_signature": True}), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(_key_identifier(key), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(
                issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
            ),
            critical=False,
        )
    )
    return builder.sign(authority.key, hashes.SHA256())


def pem(certificate: x509.Certificate) -> bytes:
    """Return a certificate as text."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def load_certificate(path: Path) -> x509.Certificate:
    """Return the first certificate in a PEM file; raises EnrolmentError."""
    try:
        return certificate_in(read_named(path))
    except FileNotFoundError:
        raise EnrolmentError(
            f"There is no certificate at {path}. Restore the federation's folder from its backup."
        ) from None
    except (OSError, ValueError) as problem:
        raise EnrolmentError(
            f"The certificate {path} cannot be read ({problem}). Restore it from the backup."
        ) from None


def load_authority(key: Path, certificate: Path) -> Authority:
    """Return the authority; raises EnrolmentError, also where its key is kept elsewhere."""
    if not key.exists() or not key.stat().st_size:  # a container may need a file in its place
        raise EnrolmentError(
            f"The authority's key is not at {key}. If it is kept on another medium, bring it back"
            " for as long as this takes."
        )
    own, vouched = _private_key(key), load_certificate(certificate)
    if not is_issued_by(vouched, vouched) or certified_key(vouched) != own.public_key():
        raise EnrolmentError(
            f"The certificate {certificate} is damaged, or not that of {key}. Restore both from one"
            " backup."
        )
    return Authority(own, vouched)


def load_identity(path: Path) -> Identity:
    """Return the coordinator's key and certificate; raises EnrolmentError."""
    key = _private_key(path)
    return Identity(private_pem(key), pem(load_certificate(path)))


def _private_key(path: Path) -> PrivateKey:
    return load_private_key(path, EnrolmentError, "Restore it from the backup.")


def validity_in_words(certificate: x509.Certificate) -> str:
    """Return the hospital that a certificate names, and its last day."""
    hosts = [str(name.value) for name in _alternative_names(certificate)]
    return f"for {', '.join(hosts)}, {expiry.in_words(certificate.not_valid_after_utc)}"


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: PublicKey, serial: int, expires: datetime
) -> x509.CertificateBuilder:
    # One that expires in the past is made by those who test what then happens.
    start = min(expiry.now(), expires) - BACKDATED
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(serial)
        .not_valid_before(start)
        .not_valid_after(expires)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _key_identifier(key: PublicKey) -> x509.SubjectKeyIdentifier:
    return x509.SubjectKeyIdentifier.from_public_key(key)


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


_REMEDY = "The site makes one with `erosion enroll request NAME`, which writes node.csr."


@dataclass(frozen=True, slots=True)
class SigningRequest:
    """Return the hospital that the request names, and the key."""

    hospital: str
    key: PublicKey


def read_request(path: Path) -> SigningRequest:
    """Raises EnrolmentError, also where the file holds a private key by mistake."""
    try:
        pem = read_named(path)
    except OSError as problem:
        raise EnrolmentError(
            f"The request {path} cannot be read: {problem.strerror}. Check the path."
        ) from None
    if b"PRIVATE KEY" in pem:
        raise EnrolmentError(
            f"{path} holds a private key, which must not leave its site. Ask the site for the file"
            " that ends in .csr, and have it make a new key, because this one has travelled."
        )
    try:
        request = x509.load_pem_x509_csr(pem)
        key, is_theirs = request.public_key(), request.is_signature_valid
    except Exception:  # noqa: BLE001 - the library may raise anything on a foreign file
        raise EnrolmentError(
            f"{path} does not hold a request for a certificate in PEM. {_REMEDY}"
        ) from None
    if not is_theirs:
        raise EnrolmentError(f"The request {path} is not signed by its own key. {_REMEDY}")
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, CURVES):
        raise EnrolmentError(f"The key of {path} is not on P-256 or P-384. {_REMEDY}")
    names = request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return SigningRequest(str(names[0].value) if names else "", key)


@dataclass(frozen=True, slots=True)
class _Authority:
    """What vouches for one hospital."""

    hospital: str
    name: str  # in the site's certificate
    issuers: tuple[x509.Certificate, ...]


@dataclass(frozen=True, slots=True)
class OwnAuthorities:
    """One for each hospital that has its own: none of them can vouch for another hospital."""

    authorities: tuple[_Authority, ...] = ()
    pem: bytes = b""  # all of them, for the TLS handshake
    files: tuple[Path, ...] = ()  # from which they were read

    @property
    def hospitals(self) -> Collection[str]:
        """Who has one."""
        return [each.hospital for each in self.authorities]

    def hospital_of(self, certificate: x509.Certificate) -> str | None:
        """Return the hospital that `certificate` is for; None where it is for none."""
        names = set(names_in(certificate))
        for each in self.authorities:
            if each.name in names and any(is_issued_by(certificate, i) for i in each.issuers):
                return each.hospital
        return None


def read_own_authorities(folder: FederationFolder) -> OwnAuthorities:
    """Return the authorities that `federation.toml` names. Raises EnrolmentError."""
    authorities, pems, files = [], [], []
    for hospital, own in folder.read_place().authorities.items():
        issuers, pem = read_own_authority(folder, hospital, own)
        authorities.append(_Authority(hospital, own.name, issuers))
        pems.append(pem)
        files.append(folder.path / own.certificate)
    return OwnAuthorities(tuple(authorities), b"\n".join(pems), tuple(files))


def read_own_authority(
    folder: FederationFolder, hospital: str, own: OwnAuthority
) -> tuple[tuple[x509.Certificate, ...], bytes]:
    """Return one hospital's: its certificates, and the file itself. Raises EnrolmentError."""
    path = folder.path / own.certificate
    try:
        pem = read_named(path)
        issuers = tuple(certificates_in(pem))
    except (OSError, ValueError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else problem
        raise EnrolmentError(
            f"The authority of {hospital}, {path}: {reason}. Put the certificate of the authority"
            f" that signs its site's certificate there, or take authorities.{hospital} out of"
            " federation.toml."
        ) from None
    return issuers, pem


class ServingCertificate:
    """Read again when the federation's files have changed, at the next connection at the latest."""

    def __init__(self, folder: FederationFolder) -> None:
        """Raises EnrolmentError where it cannot be read or has expired."""
        self._folder = folder
        self._own = OwnAuthorities()
        self._lock = threading.RLock()
        self._seen, self._problem = self._versions(), ""  # with the latest reading
        self._handed = self._seen  # versions of what gRPC has
        self._load()
        if expiry.has_ended(self.expires):
            raise EnrolmentError(
                f"The coordinator's certificate {folder.coordinator}"
                f" {expiry.in_words(self.expires)}, and no site would accept it."
                f" Run: erosion enroll renew coordinator{folder.option}"
            )

    @property
    def expires(self) -> datetime:
        """When sites stop accepting it."""
        with self._lock:
            self._reload()
            return self._certificate.not_valid_after_utc

    @property
    def trouble(self) -> str | None:
        """Why no site accepts it any more, and the remedy; None where one would."""
        if not expiry.has_ended(self.expires):
            return None
        return (
            f"the coordinator's certificate {expiry.in_words(self.expires)}; run:"
            f" erosion enroll renew coordinator{self._folder.option}"
        )

    @property
    def words(self) -> str:
        """For which names it is, and until when."""
        return validity_in_words(self._certificate)

    def credentials(self, *, on_handshake: Callable[[], None]) -> grpc.ServerCredentials:
        """For a gRPC server; `on_handshake` is called when a connection begins.

        A site without a certificate of one of the federation's authorities does not get beyond
        the handshake.
        """

        def latest() -> grpc.ServerCertificateConfiguration | None:
            on_handshake()
            with self._lock:
                self._reload()
                if self._seen == self._handed:
                    return None
                self._handed = self._seen
                return self._configuration()

        with self._lock:
            self._handed = self._seen
            first = self._configuration()
        return grpc.dynamic_ssl_server_credentials(
            first, latest, require_client_authentication=True
        )

    def _versions(self) -> tuple[object, ...]:
        folder = self._folder
        files = (folder.coordinator, folder.authority, folder.place, *self._own.files)
        return tuple(map(version_of, files))

    def _load(self) -> None:
        identity = load_identity(self._folder.coordinator)
        own = read_own_authorities(self._folder)
        load_certificate(self._folder.authority)  # gRPC says nothing of a file without one
        roots = read_named(self._folder.authority) + own.pem
        self._identity: Identity = identity
        self._own, self._roots = own, roots
        self._certificate = x509.load_pem_x509_certificate(identity.certificate)

    def _reload(self) -> bool:
        """Read the files if they have changed; False where they have not."""
        seen = self._versions()
        if seen == self._seen:
            return False
        try:
            self._load()
        except (EnrolmentError, OSError) as problem:
            if str(problem) != self._problem:
                logger.error("the certificate stays as it was: %s", problem)
            self._problem = str(problem)
            return False
        self._seen, self._problem = seen, ""
        logger.info("the certificate was read again: %s", self.words)
        return True

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        pair = (self._identity.key, self._identity.certificate)
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=self._roots)
