"""A site's request for a certificate (PKCS #10), which shows that the site holds the key."""

from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from erosion.common.errors import EnrolmentError
from erosion.common.support.files import read_named
from erosion.common.support.keys import CURVES, PublicKey

_REMEDY = "The site makes one with `erosion enroll request NAME`, which writes node.csr."


@dataclass(frozen=True, slots=True)
class SigningRequest:
    """Whose it is by its own word, and the key."""

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
    except Exception:  # noqa: BLE001 - whatever the library says of a file from elsewhere
        raise EnrolmentError(
            f"{path} does not hold a request for a certificate in PEM. {_REMEDY}"
        ) from None
    if not is_theirs:
        raise EnrolmentError(f"The request {path} is not signed by its own key. {_REMEDY}")
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, CURVES):
        raise EnrolmentError(f"The key of {path} is not on P-256 or P-384. {_REMEDY}")
    names = request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return SigningRequest(str(names[0].value) if names else "", key)
