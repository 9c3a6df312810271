"""The hospitals' public keys for each site to pin: in its kit, and by `erosion enroll peers`."""

from pathlib import Path

from erosion_common.errors import EnrolmentError
from erosion_common.sealed.pinned_keys import as_text
from erosion_common.support.files import write_atomically
from erosion_common.support.keys import PublicKey, read_public_key
from erosion_server.enrolment.federation_folder import (
    EnrolledKey,
    FederationFolder,
    KeyRegistry,
    read_key_registry,
)


def write_peers(folder: FederationFolder, out: Path) -> list[EnrolledKey]:
    """Write the keys that are not revoked, by name, and return them. Raises EnrolmentError."""
    folder.read_place()
    registry = read_key_registry(folder.roster)
    current = [key for key in registry.keys if key.revoked is None]
    if not current:
        raise EnrolmentError(
            f"No hospital is enrolled in {folder.path}."
            f" `erosion enroll site NAME{folder.option}` enrols one."
        )
    try:
        write_atomically(out, peers_text(registry))
    except OSError as problem:
        raise EnrolmentError(f"{out} cannot be written: {problem}. Give another --out.") from None
    return sorted(current, key=lambda key: key.hospital)


def peers_text(registry: KeyRegistry, *, without: str = "") -> str:
    """Return the file's content without the hospital `without`; empty where nobody else is."""
    current = [k for k in registry.keys if k.revoked is None and k.hospital != without]
    return as_text({key.hospital: _key(key) for key in current})


def _key(enrolled: EnrolledKey) -> PublicKey:
    return read_public_key(enrolled.public_key.encode(), enrolled.hospital, EnrolmentError)
