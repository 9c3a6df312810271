"""A site's key: by its public half the coordinator knows the hospital."""

import hashlib
import os
import sys
from collections.abc import Callable, Sequence
from getpass import getpass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from erosion_common.errors import ErosionError
from erosion_common.support.files import exposure, read_named

PrivateKey = ec.EllipticCurvePrivateKey
PublicKey = ec.EllipticCurvePublicKey
CURVES = (ec.SECP256R1, ec.SECP384R1)
_BY_REQUEST = "The site makes one with `erosion enroll request NAME`."
ANOTHER_KEY = "Take it from the site kit again, or make one with `erosion enroll request NAME`."
# What the library says of a certificate that is damaged or odd.
ODD_CERTIFICATE = (
    ValueError,
    TypeError,
    KeyError,  # a kind of text that it does not know
    InvalidSignature,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)


def new_private_key() -> PrivateKey:
    """Return a key on P-256, which signs and verifies several times faster than P-384."""
    return ec.generate_private_key(ec.SECP256R1())


def private_pem(key: PrivateKey, passphrase: str = "") -> bytes:
    """Return the key as the text of a file that nobody else may read; encrypted, if so wished."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(passphrase.encode())
        if passphrase
        else serialization.NoEncryption(),
    )


def secret(variable: str, prompt: str) -> str:
    """Return a passphrase: `variable`'s, that of the file VARIABLE_FILE, a person's, or ""."""
    if file := os.environ.get(f"{variable}_FILE"):
        return read_named(Path(file)).decode().rstrip("\r\n")
    if variable in os.environ or not sys.stdin.isatty():
        return os.environ.get(variable, "")
    return getpass(prompt)


def public_pem(key: PublicKey) -> bytes:
    """Return the public half as text; the same bytes for the same key, so they can be compared."""
    return key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def load_private_key(
    path: Path,
    error: type[ErosionError],
    remedy: str = ANOTHER_KEY,
    passphrase: Callable[[], str] | None = None,
) -> PrivateKey:
    """Read a key that only its owner can read; raises `error` with the remedy."""
    try:
        pem = read_named(path)
        exposed = exposure(path)
    except FileNotFoundError:
        raise error(
            f"There is no private key at {path}", remedy="Check the path, or restore the key."
        ) from None
    except OSError as problem:
        raise error(f"The private key {path} cannot be read: {problem.strerror}.") from None
    if exposed:
        raise error(f"The private key {path} is not private: {exposed}")
    return parse_private_key(pem, str(path), error, remedy, passphrase)


def parse_private_key(
    pem: bytes,
    where: str,
    error: type[ErosionError],
    remedy: str = ANOTHER_KEY,
    passphrase: Callable[[], str] | None = None,
) -> PrivateKey:
    """Read a key from text; raises `error` with the remedy. `passphrase`: who says that of one."""
    said = ""
    if is_encrypted := b"ENCRYPTED" in pem:  # also in OpenSSL's older form
        if passphrase is None:
            raise error(
                f"The private key {where} has a password, and this program starts without a person",
                remedy="Take the password off:"
                f" openssl pkey -in {where} -out {where}.open && mv {where}.open {where}",
            )
        try:
            said = passphrase()
        except (OSError, ValueError) as problem:
            raise error(f"The passphrase of {where} cannot be read: {problem}.") from None
    try:
        key = serialization.load_pem_private_key(pem, password=said.encode() or None)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: no passphrase was given
        if is_encrypted:
            raise error(f"That is not the passphrase of {where}", remedy="Try again.") from None
        raise error(f"{where} does not hold a private key in PEM", remedy=remedy) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, CURVES):
        raise error(
            f"The private key {where} is not an elliptic-curve key on P-256 or P-384", remedy=remedy
        )
    return key


def check_is_public(pem: bytes, where: object, error: type[ErosionError]) -> None:
    """Raise `error` for a file that holds a private key by mistake."""
    if b"PRIVATE KEY" in pem:
        raise error(
            f"{where} holds a private key, which must not leave its site",
            remedy="Ask the site for the file that ends in .csr, and have it make a new key,"
            " because this one has travelled.",
        )


def read_public_key(pem: bytes, where: str, error: type[ErosionError]) -> PublicKey:
    """Read a public key; raises `error`, also where the file holds a private one by mistake."""
    check_is_public(pem, where, error)
    try:
        key = serialization.load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm):
        raise error(f"{where} does not hold a public key in PEM", remedy=_BY_REQUEST) from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, CURVES):
        raise error(f"The public key in {where} is not on P-256 or P-384", remedy=_BY_REQUEST)
    return key


def certificate_in(pem: bytes, *, alone: bool = False) -> x509.Certificate:
    """Return the first certificate of a file; `alone`: it must be the only one.

    Raises ValueError that says what the file holds. An authority stands alone: people compare one
    fingerprint, and anything else in the file would be trusted unseen.
    """
    found = certificates_in(pem)
    if alone and len(found) > 1:
        raise ValueError(f"{len(found)} certificates where one alone may be")
    return found[0]


def certificates_in(pem: bytes) -> Sequence[x509.Certificate]:
    """Return a file's certificates, one at least. Raises ValueError that names the content."""
    try:
        found = x509.load_pem_x509_certificates(pem)
        for each in found:  # what else is read only when somebody asks for it
            _ = each.subject, each.not_valid_before_utc, each.not_valid_after_utc
    except ODD_CERTIFICATE:
        raise ValueError("no certificate in PEM") from None
    return found


def is_issued_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    """Return whether `issuer` names itself in the certificate and has signed it."""
    try:
        certificate.verify_directly_issued_by(issuer)
    except ODD_CERTIFICATE:
        return False
    return True


def certified_key(certificate: x509.Certificate) -> PublicKey | None:
    """Return the key that a certificate is for; None where it is of a kind that is not enrolled."""
    try:
        key = certificate.public_key()
    except ODD_CERTIFICATE:
        return None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, CURVES):
        return None
    return key


def fingerprint(key: PublicKey) -> str:
    """Return 32 hexadecimal digits in groups, short enough to compare by telephone."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return _in_groups(key.public_bytes(serialization.Encoding.DER, form))


def certificate_fingerprint(certificate: x509.Certificate) -> str:
    """Return the same of a certificate."""
    return _in_groups(certificate.public_bytes(serialization.Encoding.DER))


def _in_groups(der: bytes) -> str:
    digits = hashlib.sha256(der).hexdigest()[:32]
    return " ".join(digits[i : i + 4] for i in range(0, len(digits), 4))
