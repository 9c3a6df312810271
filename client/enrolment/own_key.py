"""A key that the site makes itself, and the request by which the coordinator certifies it."""

from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import NameOID

from erosion.common.errors import EnrolmentError
from erosion.common.settings.names import checked_hospital
from erosion.common.support.files import write_atomically, write_private
from erosion.common.support.keys import PublicKey, new_private_key, private_pem

MOST_COMMON_NAME = 64  # characters, by X.520


def make_request(hospital: str, key_file: Path) -> tuple[Path, PublicKey]:
    """Write a new key to `key_file` and its request beside it. Raises EnrolmentError."""
    try:
        checked_hospital(hospital)
    except ValueError as problem:
        raise EnrolmentError(f"The site's name {hospital!r}: {problem}.") from None
    if len(hospital) > MOST_COMMON_NAME:
        raise EnrolmentError(f"The site's name may have {MOST_COMMON_NAME} characters at most.")
    if not key_file.name or key_file.suffix == ".csr" or key_file.is_dir():
        raise EnrolmentError(
            f"--out {key_file}: it names the key's file, beside which the request is put as .csr."
            " Give a file name such as node.key."
        )
    request_file = key_file.with_suffix(".csr")
    for existing in (key_file, request_file):
        if existing.exists():
            raise EnrolmentError(f"{existing} exists already. Give --out another name.")
    key = new_private_key()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hospital)])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject)
    pem = request.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    try:
        write_private(key_file, private_pem(key))
        write_atomically(request_file, pem)
    except OSError as problem:
        raise EnrolmentError(f"The key cannot be written: {problem}. Give another --out.") from None
    return request_file, key.public_key()
