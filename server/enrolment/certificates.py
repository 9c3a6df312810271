"""The federation's own certificate authority, and the coordinator's certificate."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from erosion.common.errors import EnrolmentError
from erosion.common.support import expiry
from erosion.common.support.keys import (
    PrivateKey,
    PublicKey,
    load_private_key,
    new_private_key,
    private_pem,
)

AUTHORITY_DAYS = 3650  # every site has to be visited to replace it
COORDINATOR_DAYS = 90

# A site whose clock is behind must be refused with that reason, not fail in the handshake.
BACKDATED = timedelta(days=1)

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
    """Anyone with the key can make a certificate that the sites take for the coordinator's."""

    key: PrivateKey = field(repr=False)
    certificate: x509.Certificate


@dataclass(frozen=True, slots=True)
class Identity:
    """What the coordinator shows to sites."""

    key: bytes = field(repr=False)  # PEM
    certificate: bytes  # PEM


def new_authority() -> Authority:
    """An authority for one federation, that can sign nothing but coordinators' certificates."""
    key = new_private_key()
    # A name of its own: two authorities with one name make for misleading TLS errors.
    serial = x509.random_serial_number()
    name = _name(f"Erosion federation {serial & 0xFFFFFFFF:08x}")
    builder = (
        _certificate(name, name, key.public_key(), serial, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.KeyUsage(**{**_NO_USAGE, "key_cert_sign": True, "crl_sign": True}), critical=True
        )
        .add_extension(_key_identifier(key.public_key()), critical=False)
    )
    return Authority(key, builder.sign(key, hashes.SHA256()))


def issue(authority: Authority, hosts: Sequence[str], days: float) -> Identity:
    """A new key and certificate for a coordinator that sites reach by any of `hosts`."""
    key = new_private_key()
    issuer = authority.certificate
    builder = (
        _certificate(
            _name("Erosion coordinator"),
            issuer.subject,
            key.public_key(),
            x509.random_serial_number(),
            days,
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(**{**_NO_USAGE, "digital_signature": True}), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_host(h) for h in hosts]), critical=False)
        .add_extension(_key_identifier(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(
                issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
            ),
            critical=False,
        )
    )
    certificate = builder.sign(authority.key, hashes.SHA256())
    return Identity(private_pem(key), pem(certificate))


def pem(certificate: x509.Certificate) -> bytes:
    """A certificate as text."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def load_certificate(path: Path) -> x509.Certificate:
    """The first certificate in a PEM file; raises EnrolmentError."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except FileNotFoundError:
        raise EnrolmentError(
            f"There is no certificate at {path}. Restore the federation's folder from its backup."
        ) from None
    except (OSError, ValueError) as problem:
        raise EnrolmentError(
            f"The certificate {path} cannot be read ({problem}). Restore it from the backup."
        ) from None


def load_authority(key: Path, certificate: Path) -> Authority:
    """The authority, to sign with; raises EnrolmentError, also where its key is kept elsewhere."""
    if not key.exists():
        raise EnrolmentError(
            f"The authority's key is not at {key}. If it is kept on another medium, bring it back"
            " for as long as this takes."
        )
    return Authority(load_private_key(key, EnrolmentError), load_certificate(certificate))


def load_identity(path: Path) -> Identity:
    """The coordinator's key and certificate; raises EnrolmentError."""
    key = load_private_key(path, EnrolmentError)
    return Identity(private_pem(key), pem(load_certificate(path)))


def validity_in_words(certificate: x509.Certificate) -> str:
    """For whom a certificate is, and until when."""
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    hosts = [str(name.value) for name in names]
    return f"for {', '.join(hosts)}, {expiry.in_words(certificate.not_valid_after_utc)}"


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: PublicKey, serial: int, days: float
) -> x509.CertificateBuilder:
    start: datetime = expiry.now()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(serial)
        .not_valid_before(start - BACKDATED)
        .not_valid_after(start + timedelta(days=days))
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
