"""A site's own key and request, the kit that it installs, and the peers' keys that it pins."""

import gzip
import io
import tarfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import NameOID

from erosion_client.site_file import AppSite
from erosion_common.errors import EnrolmentError
from erosion_common.sealed import pinned_keys
from erosion_common.sealed.pinned_keys import as_text, read_pinned_keys
from erosion_common.settings.names import checked_hospital
from erosion_common.support import expiry
from erosion_common.support.files import read_named, write_atomically, write_private
from erosion_common.support.keys import (
    PrivateKey,
    PublicKey,
    certificate_in,
    certified_key,
    fingerprint,
    is_issued_by,
    load_private_key,
    new_private_key,
    parse_private_key,
    private_pem,
    public_pem,
    secret,
)


def make_request(hospital: str, key_file: Path) -> tuple[Path, PublicKey]:
    """Write a new key to `key_file` and its request next to it. Raises EnrolmentError."""
    try:
        checked_hospital(hospital)
    except ValueError as problem:
        raise EnrolmentError(f"{problem}.", where=f"The site's name {hospital!r}") from None
    if not key_file.name or key_file.suffix == ".csr" or key_file.is_dir():
        raise EnrolmentError(
            "it names the key's file, and the request is put next to it as .csr",
            where=f"--out {key_file}",
            remedy="Give a file name such as node.key.",
        )
    request_file = key_file.with_suffix(".csr")
    for existing in (key_file, request_file):
        if existing.exists():
            raise EnrolmentError(f"{existing} exists already", remedy="Give --out another name.")
    key = new_private_key()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hospital)])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject)
    pem = request.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    try:
        write_private(key_file, private_pem(key))
        write_atomically(request_file, pem)
    except OSError as problem:
        key_file.unlink(missing_ok=True)  # without its request it is of no use
        raise EnrolmentError(
            f"the key and its request cannot be written ({problem.strerror})",
            where=str(problem.filename),
            remedy="Make room, or give another --out.",
        ) from None
    return request_file, key.public_key()


@dataclass(frozen=True, slots=True)
class Pinned:
    """The result of pinning."""

    path: Path
    added: Mapping[str, PublicKey]
    replaced: Mapping[str, PublicKey]
    refused: Mapping[str, tuple[PublicKey, PublicKey]]  # pinned, and offered

    def lines(self) -> Iterator[str]:
        """Yield lines for people."""
        for done, keys in (("Pinned", self.added), ("Replaced", self.replaced)):
            if keys:
                yield f"{done} in {self.path}; compare each with the hospital itself:"
                yield from (f"  {name}  {fingerprint(key)}" for name, key in keys.items())
        for name, (pinned, offered) in self.refused.items():
            yield (
                f"Not replaced: {name} has another key here ({fingerprint(pinned)}) than the one"
                f" that was sent ({fingerprint(offered)}). Ask {name} itself which is right, not"
                f" the coordinator; if the new one is, `erosion enroll pin FILE SITE.toml --replace"
                f" {name}`."
            )
        if not (self.added or self.replaced or self.refused):
            yield f"{self.path} holds these keys already."


def pin_peers(offered: Path, site: AppSite, replace: Collection[str] = ()) -> Pinned:
    """Pin the keys that the coordinator sent. Raises EnrolmentError."""
    return pin(read_pinned_keys(offered, EnrolmentError), site, replace)


def pin(offered: Mapping[str, PublicKey], site: AppSite, replace: Collection[str] = ()) -> Pinned:
    """Pin these keys; those in `replace` may replace another."""
    path = site.sealed.peers or Path(pinned_keys.NAME)
    pinned = read_pinned_keys(path, EnrolmentError) if path.exists() else {}
    others = {name: offered[name] for name in sorted(offered) if name != site.name}
    if unknown := sorted(set(replace) - set(others)):
        raise EnrolmentError(f"There is no key of {', '.join(unknown)} among those that were sent.")
    added = {name: key for name, key in others.items() if name not in pinned}
    changed = {
        name: key
        for name, key in others.items()
        if name in pinned and public_pem(key) != public_pem(pinned[name])
    }
    replaced = {name: key for name, key in changed.items() if name in replace}
    refused = {name: (pinned[name], key) for name, key in changed.items() if name not in replace}
    if added or replaced:
        keys = {**pinned, **added, **replaced}
        if why := pinned_keys.problem_with_owners(keys):
            raise EnrolmentError(f"Nothing is pinned: {why}")
        try:
            write_atomically(path, as_text(keys))
        except OSError as problem:
            raise EnrolmentError(f"{path} cannot be written: {problem.strerror}.") from None
    return Pinned(path, added, replaced, refused)


NAMES = frozenset({"ca.crt", "node.crt", "node.key", pinned_keys.NAME})  # that are installed
LARGEST_MEMBER_BYTES = 2**20
LARGEST_KIT_BYTES = 2**23  # unpacked; a line of zeros is packed into a thousandth
MOST_MEMBERS = 64
_NAME_THE_KEY = (
    "If this site made the key and its request (erosion enroll request), name that key's file by"
    " --key FILE."
)


@dataclass(frozen=True, slots=True)
class InstalledKit:
    """The installed files and their places."""

    files: tuple[Path, ...]
    certificate: x509.Certificate
    key_file: Path  # enrolled name of the key
    pinned: Pinned | None  # the other hospitals' keys; None: the kit has none
    replaced_authority: bool  # another authority is trusted than before

    @property
    def words(self) -> str:
        """A text for people."""
        return expiry.in_words(self.certificate.not_valid_after_utc)


def install(
    kit: Path, site: AppSite, *, own_key: Path | None = None, new_authority: bool = False
) -> InstalledKit:
    """Install `kit`. Raises EnrolmentError, before anything is written, where it does not fit.

    `own_key`: of a request that this site made, where the site file names another key so far.
    `new_authority`: the kit's authority may replace another, which is then no longer trusted.
    """
    coordinator = site.coordinator
    places = coordinator.root_certificate, coordinator.certificate, coordinator.private_key
    root_file, certificate_file, key_file = places
    if root_file is None or certificate_file is None or key_file is None:
        raise EnrolmentError(
            "The site file does not say where the keys are. Under [coordinator] write:\n"
            '  root_certificate = "ca.crt"\n  certificate = "node.crt"\n  private_key = "node.key"'
        )
    members = _members(kit)
    root = _certificate(kit, members, "ca.crt")
    certificate = _certificate(kit, members, "node.crt")
    key = _key(kit, members, key_file, own_key)
    _check(kit, site, root, certificate, key, own_key or key_file)
    is_other = False
    with suppress(OSError, ValueError):  # this site trusts none so far
        is_other = certificate_in(read_named(root_file)) != root
    if is_other and not new_authority:
        digits = root.fingerprint(hashes.SHA256()).hex()[:32]
        groups = " ".join(digits[i : i + 4] for i in range(0, 32, 4))
        raise EnrolmentError(
            f"The kit is of another authority than {root_file}: its fingerprint is {groups}",
            remedy="Compare it with the coordinator by telephone; if it is right, install with"
            f" --new-authority. Then {root_file} is replaced, and its coordinator is not"
            " connected to any more.",
        )
    offered = None
    if (peers := members.get(pinned_keys.NAME)) is not None:
        offered = pinned_keys.parse(peers, f"{kit}'s peers.pem", EnrolmentError)
    files = [certificate_file, root_file]
    if "node.key" in members or own_key is not None:
        write_private(key_file, private_pem(key))
        files.append(key_file)
    write_atomically(root_file, root.public_bytes(serialization.Encoding.PEM))
    write_atomically(certificate_file, members["node.crt"])
    pinned = None if offered is None else pin(offered, site)
    return InstalledKit(tuple(files), certificate, key_file, pinned, is_other)


def _members(kit: Path) -> dict[str, bytes]:
    """Return the kit's files by base names: nothing is unpacked to a path of the archive's."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(_unpacked(read_named(kit))), mode="r:") as archive:
            for member in islice(archive, MOST_MEMBERS):
                name = Path(member.name).name
                if name in NAMES and member.isfile() and member.size <= LARGEST_MEMBER_BYTES:
                    file = archive.extractfile(member)
                    found[name] = file.read() if file else b""
    except (OSError, tarfile.TarError, EOFError, zlib.error) as problem:
        raise EnrolmentError(
            f"The kit {kit} cannot be read: {getattr(problem, 'strerror', None) or problem}",
            remedy="Check the path.",
        ) from None
    return found


def _unpacked(kit: bytes) -> bytes:
    """Return the tar archive; some browsers decompress a .tar.gz. Raises what gzip raises."""
    content = kit
    if kit.startswith(b"\x1f\x8b"):
        with gzip.open(io.BytesIO(kit)) as file:
            content = file.read(LARGEST_KIT_BYTES + 1)
    if len(content) > LARGEST_KIT_BYTES:
        raise tarfile.ReadError(f"a kit holds at most {LARGEST_KIT_BYTES // 2**20} MiB")
    return content


def _certificate(kit: Path, members: dict[str, bytes], name: str) -> x509.Certificate:
    if name not in members:
        raise EnrolmentError(f"{kit} is not a site kit: it lacks {name}", remedy="Check the path.")
    try:
        return certificate_in(members[name], alone=True)
    except ValueError as problem:
        raise EnrolmentError(
            f"{name} in {kit} holds {problem}",
            remedy="Ask the coordinator for another kit, and how this one came about.",
        ) from None


def _key(kit: Path, members: dict[str, bytes], key_file: Path, own_key: Path | None) -> PrivateKey:
    if "node.key" in members:
        if own_key is not None:
            raise EnrolmentError(f"{kit} brings the key that it is for", remedy="Leave --key out.")
        ask = "The kit's password, as the coordinator told you: "
        return parse_private_key(
            members["node.key"],
            "the kit's node.key",
            EnrolmentError,
            passphrase=lambda: secret("EROSION_KIT_PASSWORD", ask),
        )
    if own_key is None and not key_file.exists():
        raise EnrolmentError(
            f"There is no private key at {key_file}, and none in {kit}", remedy=_NAME_THE_KEY
        )
    return load_private_key(own_key or key_file, EnrolmentError)


def _check(
    kit: Path,
    site: AppSite,
    root: x509.Certificate,
    certificate: x509.Certificate,
    key: PrivateKey,
    key_file: Path,
) -> None:
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if site.name not in (holders := [str(name.value) for name in names]):
        raise EnrolmentError(
            f"{kit} is for {', '.join(holders) or 'nobody'}, and the site file is {site.name}'s",
            remedy=f"Ask the coordinator for the kit of {site.name}.",
        )
    public = certified_key(certificate)
    if public is None or public_pem(public) != public_pem(key.public_key()):
        raise EnrolmentError(
            f"The certificate in {kit} is not for this site's key ({key_file})",
            remedy=f"{_NAME_THE_KEY} If there is none, ask the coordinator for a kit with a new"
            " key.",
        )
    if not is_issued_by(certificate, root):
        raise EnrolmentError(f"The certificate in {kit} is not of the kit's authority.")
    if expiry.has_ended(certificate.not_valid_after_utc):
        words = expiry.in_words(certificate.not_valid_after_utc)
        raise EnrolmentError(f"The certificate in {kit} {words}", remedy="Ask for a later one.")
