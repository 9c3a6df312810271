"""The archive for one hospital: its key, the trusted authority, its site file and a guide."""

import io
import sys
import tarfile
import time
import zlib
from importlib.resources import files
from pathlib import Path
from string import Template

from cryptography import x509

from erosion.common.errors import EnrolmentError
from erosion.common.sealed import pinned_keys
from erosion.common.support import expiry
from erosion.common.support.files import make_private_folder, read_named, write_private
from erosion.common.support.keys import PrivateKey, certificate_fingerprint, private_pem
from erosion.server.enrolment.federation_folder import Address
from erosion.server.enrolment.key_registry import EnrolledKey

STANDARD_OUTPUT = Path("-")  # in place of a file, for who may not read this account's files
_KEY = "node.key"
_KIT_KEY = "It came in this kit."
_OWN_KEY = "It is the one that this site made itself: put it here."


def write_kit(
    path: Path,
    key: EnrolledKey,
    place: Address,
    authority: bytes,
    private: PrivateKey | None,
    peers: str,
) -> None:
    """Write the archive, readable by its owner alone. `private`: None where the site has its key.

    `peers`: the content of its peers.pem, which it has where there is one. A .tar.gz and not a
    .zip, because unpacking a .zip would make the key readable by everybody.
    """
    words = {
        "hospital": key.hospital,
        "address": place.address,
        "host": place.hosts[0],
        "port": str(place.port),
        "fingerprint": key.fingerprint,
        "authority_fingerprint": authority_fingerprint(authority),
        "expires": f"{key.expires:%Y-%m-%d}",
        "warning_days": str(expiry.WARNING.days),
        "key_origin": _KIT_KEY if private else _OWN_KEY,
    }
    texts = {
        "GUIDE.md": (_text("site_guide.md", words), 0o644),
        "site.toml": (_text("site_file.toml", words), 0o644),
    }
    _write(path, key.hospital, {**texts, **_keys(key, authority, private, peers)})


def write_renewal(
    path: Path, key: EnrolledKey, authority: bytes, private: PrivateKey | None, peers: str
) -> None:
    """The same for a site that is set up already: nothing in it is the site's to change."""
    _write(path, key.hospital, _keys(key, authority, private, peers))


def _keys(
    key: EnrolledKey, authority: bytes, private: PrivateKey | None, peers: str
) -> dict[str, tuple[bytes, int]]:
    members = {
        "ca.crt": (authority, 0o644),
        "node.crt": ((key.certificate or "").encode(), 0o644),
    }
    if peers:
        members[pinned_keys.NAME] = (peers.encode(), 0o644)
    if private:
        members[_KEY] = (private_pem(private), 0o600)
    return members


def _write(path: Path, folder: str, members: dict[str, tuple[bytes, int]]) -> None:
    if path == STANDARD_OUTPUT:
        _print(_archive(folder, members))
        return
    if _holds_private_key(path):
        raise EnrolmentError(
            f"{path} holds a private key, which may be nowhere else, and is not written over."
            " Nothing has changed. Give --out another file; or, if it is a kit, hand it over to its"
            " hospital and delete it here."
        )
    if not path.parent.exists():
        make_private_folder(path.parent)
    write_private(path, _archive(folder, members))


def _holds_private_key(path: Path) -> bool:
    try:
        content = read_named(path)
        if b"PRIVATE KEY" in content:
            return True
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            return any(Path(name).name == _KEY for name in archive.getnames())
    except (OSError, tarfile.TarError, EOFError, zlib.error):  # there is none, or no kit
        return False


def _print(archive: bytes) -> None:
    if sys.stdout.isatty():
        raise EnrolmentError(
            "The kit would be printed to the terminal and be lost. Nothing has changed; write it to"
            " a file: --out - > NAME.tar.gz"
        )
    try:
        sys.stdout.buffer.write(archive)
        sys.stdout.buffer.flush()
    except OSError as problem:
        raise EnrolmentError(
            f"The kit could not be printed: {problem.strerror}. Nothing has changed; print it"
            " where there is room, or give --out a file."
        ) from None


def authority_fingerprint(authority: bytes) -> str:
    """The fingerprint of the authority's certificate in PEM."""
    return certificate_fingerprint(x509.load_pem_x509_certificate(authority))


def _text(template: str, words: dict[str, str]) -> bytes:
    text = (files("erosion.server") / "kit" / template).read_text(encoding="utf-8")
    return Template(text).substitute(words).encode()


def _archive(folder: str, members: dict[str, tuple[bytes, int]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", format=tarfile.PAX_FORMAT) as archive:
        top = tarfile.TarInfo(folder)
        top.type, top.mode, top.mtime = tarfile.DIRTYPE, 0o700, int(time.time())
        archive.addfile(top)
        for name, (content, mode) in members.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size, member.mode, member.mtime = len(content), mode, int(time.time())
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()
