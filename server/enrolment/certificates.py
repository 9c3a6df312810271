"""The federation's own certificate authority, and the certificates of coordinator and sites."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from erosion.common.errors import EnrolmentError
from erosion.common.support import expiry
from erosion.common.support.files import read_named
from erosion.common.support.keys import (
    ODD_CERTIFICATE,
    PrivateKey,
    PublicKey,
    certificate_in,
    certified_key,
    is_issued_by,
    load_private_key,
    new_private_key,
    private_pem,
)

AUTHORITY_DAYS = 3650  # every site has to be visited to replace it
COORDINATOR_DAYS = 90

BACKDATED = timedelta(days=1)  # for machines whose clock is behind
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
    """An authority for one federation, which can make no further authorities."""
    key = new_private_key()
    # A name of its own: two authorities with one name make for misleading TLS errors.
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
    """A new key and certificate for a coordinator that sites reach by any of `hosts`."""
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
    """The certificate by which the holder of `key` connects as `hospital`."""
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
    """A certificate as text."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def load_certificate(path: Path) -> x509.Certificate:
    """The first certificate in a PEM file; raises EnrolmentError."""
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
    """The authority, to sign with; raises EnrolmentError, also where its key is kept elsewhere."""
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
    """The coordinator's key and certificate; raises EnrolmentError."""
    key = _private_key(path)
    return Identity(private_pem(key), pem(load_certificate(path)))


def _private_key(path: Path) -> PrivateKey:
    return load_private_key(path, EnrolmentError, "Restore it from the backup.")


def validity_in_words(certificate: x509.Certificate) -> str:
    """For whom a certificate is, and until when."""
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
