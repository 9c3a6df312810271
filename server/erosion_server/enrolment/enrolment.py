"""Creates a federation, and enrols, renews and revokes its sites, each with a kit."""

import io
import secrets
import sys
import tarfile
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from importlib.resources import files
from pathlib import Path
from shlex import quote
from string import Template

from cryptography import x509

from erosion_common.errors import EnrolmentError
from erosion_common.sealed import pinned_keys
from erosion_common.settings.names import checked_hospital
from erosion_common.support import expiry, keys
from erosion_common.support.files import (
    make_private_folder,
    read_named,
    write_atomically,
    write_private,
)
from erosion_common.support.keys import PrivateKey, PublicKey
from erosion_server.enrolment import certificates
from erosion_server.enrolment import federation_folder as federation
from erosion_server.enrolment.certificates import COORDINATOR_DAYS, read_request
from erosion_server.enrolment.federation_folder import EnrolledKey, FederationFolder, KeyRegistry

STANDARD_OUTPUT = Path("-")  # in place of a file, for who may not read this account's files
_KEY = "node.key"
_KIT_KEY = "It came in this kit."
_LOCKED_KEY = (
    "It came in this kit under a password, which the coordinator tells you by telephone; take it"
    " off: `openssl pkey -in node.key -out node.key.open && mv node.key.open node.key`"
)
_OWN_KEY = "It is the one that this site made itself: put it here."


def _write_kit(
    out: Path | None,
    folder: FederationFolder,
    roster: KeyRegistry,
    key: EnrolledKey,
    private: PrivateKey | None,
    *,
    is_new: bool,
    has_password: bool = False,
) -> "Enrolment":
    """Write the archive, readable by its owner alone, and then the roster that has its key.

    `private`: None where the site has its key. `is_new`: with a site file and a guide; in another
    nothing is the site's to change. A .tar.gz and not a .zip, because unpacking a .zip would make
    the key readable by everybody.
    """
    authority, peers = folder.authority.read_bytes(), roster.peers_text(without=key.hospital)
    digits = secrets.token_hex(10)  # 80 random bits that can be said by telephone
    password = ""
    if private and has_password:
        password = "-".join(digits[i : i + 4] for i in range(0, len(digits), 4))
    members = {"ca.crt": (authority, 0o644), "node.crt": ((key.certificate or "").encode(), 0o644)}
    if is_new:
        place = folder.read_place()
        words = {
            "hospital": key.hospital,
            "address": place.address,
            "host": place.hosts[0],
            "port": str(place.port),
            "fingerprint": key.fingerprint,
            "authority_fingerprint": authority_fingerprint(authority),
            "expires": f"{key.expires:%Y-%m-%d}",
            "warning_days": str(expiry.WARNING.days),
            "key_origin": _OWN_KEY if not private else _LOCKED_KEY if password else _KIT_KEY,
        }
        for name, template in (("GUIDE.md", "site_guide.md"), ("site.toml", "site_file.toml")):
            text = (files("erosion_server") / "kit" / template).read_text(encoding="utf-8")
            members[name] = (Template(text).substitute(words).encode(), 0o644)
    if peers:
        members[pinned_keys.NAME] = (peers.encode(), 0o644)
    if private:
        members[_KEY] = (keys.private_pem(private, password), 0o600)
    kit = out or (folder.kit if is_new else folder.renewal)(key.hospital)
    archive = _archive(key.hospital, members)
    if kit == STANDARD_OUTPUT:
        _print(archive)
    else:
        if _holds_private_key(kit):
            raise EnrolmentError(
                "it holds a private key, which may be nowhere else, and is not written over;"
                " nothing has changed",
                where=str(kit),
                remedy="Give --out another file; or, if it is a kit, hand it over to its hospital"
                " and delete it here.",
            )
        if not kit.parent.exists():
            make_private_folder(kit.parent)
        write_private(kit, archive)
    try:
        federation.write_key_registry(folder.roster, roster)
    except BaseException:  # a full disk, say: nobody knows the kit's key
        if kit != STANDARD_OUTPUT:
            kit.unlink(missing_ok=True)
        raise
    return Enrolment(key, kit, password)


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
    try:
        if sys.stdout.isatty():
            raise OSError("it would be lost on a terminal")
        sys.stdout.buffer.write(archive)
        sys.stdout.buffer.flush()
    except OSError as problem:
        raise EnrolmentError(
            f"The kit could not be printed: {problem.strerror or problem}. Nothing has changed;"
            " write it to a file: --out - > NAME.tar.gz"
        ) from None


def authority_fingerprint(authority: bytes) -> str:
    """Return the fingerprint of the authority's certificate in PEM."""
    return keys.certificate_fingerprint(x509.load_pem_x509_certificate(authority))


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


SITE_DAYS = 365
COORDINATOR = "coordinator"  # what `erosion enroll renew` calls it, so no site may


@dataclass(frozen=True, slots=True)
class Enrolment:
    """A site's line in the roster, and the archive to hand over."""

    key: EnrolledKey
    kit: Path
    password: str = field(default="", repr=False)  # of the key in the kit; "": none


@dataclass(frozen=True, slots=True)
class Revocation:
    """What a hospital connected with and no longer does."""

    key: EnrolledKey | None
    own_authority: bool


def init_federation(
    folder: FederationFolder,
    place: federation.Address,
    *,
    days: float = COORDINATOR_DAYS,
    passphrase: str = "",
) -> None:
    """Make authority, certificate and roster; `passphrase` encrypts the authority's key."""
    made = (folder.authority_key, folder.authority, folder.coordinator, folder.roster)
    if any(file.exists() for file in (folder.place, *made)):
        raise EnrolmentError(
            f"{folder.path} holds a federation already",
            remedy="Its certificate is renewed, also for other names, by `erosion enroll renew"
            f" coordinator{folder.option}`. A second federation needs another --folder;"
            " where one of its files is missing, restore it from the backup.",
        )
    try:
        make_private_folder(folder.path)
    except OSError as problem:
        raise EnrolmentError(
            f"The folder {folder.path} cannot be made: {problem.strerror}",
            remedy="Name another one with --folder.",
        ) from None
    authority = certificates.new_authority()
    identity = certificates.issue(authority, place.hosts, days)
    try:
        write_private(folder.authority_key, keys.private_pem(authority.key, passphrase))
        write_private(folder.authority, certificates.pem(authority.certificate))
        write_private(folder.coordinator, identity.key + identity.certificate)
        federation.write_key_registry(folder.roster, KeyRegistry())
        folder.write_place(place)
    except BaseException:  # a full disk, say: half a federation is none
        for file in made:
            file.unlink(missing_ok=True)
        raise


def renew_coordinator(
    folder: FederationFolder, hosts: Sequence[str] = (), *, days: float = COORDINATOR_DAYS
) -> federation.Address:
    """Make a new certificate; a running coordinator shows it from the next connection on."""
    folder.read_place()
    with folder.locked():
        place = folder.read_place()
        authority = certificates.load_authority(folder.authority_key, folder.authority)
        if hosts:
            place = place.model_copy(update={"hosts": tuple(hosts)})
            folder.write_place(place)
        identity = certificates.issue(authority, place.hosts, days)
        write_private(folder.coordinator, identity.key + identity.certificate)
    return place


def enrol_site(
    folder: FederationFolder,
    hospital: str,
    *,
    request: Path | None = None,
    out: Path | None = None,
    days: float = SITE_DAYS,
    has_password: bool = False,
) -> Enrolment:
    """Certify a hospital's key: that of `request`, or a new one in its kit."""
    try:
        checked_hospital(hospital)
    except ValueError as problem:
        raise EnrolmentError(f"{problem}.", where=f"The site's name {hospital!r}") from None
    folder.read_place()
    with folder.locked():
        roster = federation.read_key_registry(folder.roster)
        if (current := roster.current(hospital)) is not None:
            replace = "with --new-key it is replaced"
            if request is not None:
                sign = _sign_command(folder, hospital, request)
                replace = f"`{sign} --replace` puts the request's in its place"
            raise EnrolmentError(
                f"{hospital} has a key already, {expiry.in_words(current.expires)}",
                remedy=f"`erosion enroll renew {hospital}{folder.option}` prolongs it; {replace}.",
            )
        private, public = _key(request)
        expires = expiry.now() + timedelta(days=days)
        key = _certified(folder, roster, hospital, public, expires)
        return _write_kit(
            out, folder, roster.added(key), key, private, is_new=True, has_password=has_password
        )


def renew_site(
    folder: FederationFolder,
    hospital: str,
    *,
    new_key: bool = False,
    request: Path | None = None,
    out: Path | None = None,
    days: float = SITE_DAYS,
    has_password: bool = False,
) -> Enrolment:
    """Make a new certificate for a hospital's key, or for another, which replaces it at once.

    The site installs the kit. Until then it connects with its present certificate, if its key
    stays the same and that certificate has not expired.
    """
    folder.read_place()
    with folder.locked():
        roster = federation.read_key_registry(folder.roster)
        current = _current(folder, roster, hospital, request)
        private: PrivateKey | None = None
        if new_key or request is not None:
            private, public = _key(request)
        else:
            public = current.key
        expires = expiry.now() + timedelta(days=days)
        if keys.public_pem(public).decode() == current.public_key:
            certificate = _certificate(folder, hospital, public, expires)
            changes = {"expires": expires, "certificate": certificate}
            key = current.model_copy(update=changes)
            roster = roster.changed(current, **changes)
        else:
            key = _certified(folder, roster, hospital, public, expires)
            roster = roster.changed(current, revoked=expiry.now()).added(key)
        return _write_kit(
            out, folder, roster, key, private, is_new=False, has_password=has_password
        )


def revoke_site(folder: FederationFolder, hospital: str) -> Revocation:
    """Deny the hospital within seconds; its own authority goes, for it could certify other keys."""
    folder.read_place()
    with folder.locked():
        place, roster = folder.read_place(), federation.read_key_registry(folder.roster)
        has_authority = hospital in place.authorities
        key = roster.current(hospital) if has_authority else _current(folder, roster, hospital)
        if key is not None:
            federation.write_key_registry(folder.roster, roster.changed(key, revoked=expiry.now()))
            for kit in (folder.kit(hospital), folder.renewal(hospital)):
                kit.unlink(missing_ok=True)
        if has_authority:
            others = {name: own for name, own in place.authorities.items() if name != hospital}
            folder.write_place(place.model_copy(update={"authorities": others}))
        return Revocation(key, has_authority)


def write_peers(folder: FederationFolder, out: Path) -> list[EnrolledKey]:
    """Write the hospitals' public keys, for each site to pin, and return them by name."""
    folder.read_place()
    registry = federation.read_key_registry(folder.roster)
    if not registry.in_force:
        raise EnrolmentError(
            f"No hospital is enrolled in {folder.path}",
            remedy=f"`erosion enroll site NAME{folder.option}` enrols one.",
        )
    try:
        write_atomically(out, registry.peers_text())
    except OSError as problem:
        raise EnrolmentError(
            f"{out} cannot be written: {problem}", remedy="Give another --out."
        ) from None
    return registry.in_force


def _key(request: Path | None) -> tuple[PrivateKey | None, PublicKey]:
    if request is not None:
        return None, read_request(request).key
    private = keys.new_private_key()
    return private, private.public_key()


def _certified(
    folder: FederationFolder,
    roster: KeyRegistry,
    hospital: str,
    public: PublicKey,
    expires: datetime,
) -> EnrolledKey:
    text = keys.public_pem(public).decode()
    if (known := next((k for k in roster.keys if k.public_key == text), None)) is not None:
        was = "" if known.trouble is None else f" and {known.trouble}"
        raise EnrolmentError(
            f"This key is {known.hospital}'s already{was}",
            remedy="Every enrolment needs a new key: the site makes one with `erosion enroll"
            f" request {hospital}`.",
        )
    return EnrolledKey(
        hospital=hospital,
        public_key=text,
        certificate=_certificate(folder, hospital, public, expires),
        enrolled=expiry.now(),
        expires=expires,
    )


def _certificate(
    folder: FederationFolder, hospital: str, public: PublicKey, expires: datetime
) -> str:
    authority = certificates.load_authority(folder.authority_key, folder.authority)
    issued = certificates.issue_site(authority, hospital, public, expires)
    return certificates.pem(issued).decode()


def _sign_command(folder: FederationFolder, hospital: str, request: Path) -> str:
    name = "" if read_request(request).hospital == hospital else f" --name {hospital}"
    return f"erosion enroll sign {quote(str(request))}{name}{folder.option}"


def _current(
    folder: FederationFolder, roster: KeyRegistry, hospital: str, request: Path | None = None
) -> EnrolledKey:
    if (current := roster.current(hospital)) is not None:
        return current
    enrols = f"erosion enroll site {hospital}{folder.option}"
    if request is not None:
        enrols = _sign_command(folder, hospital, request)
    names = [key.hospital for key in roster.in_force]
    raise EnrolmentError(
        f"{hospital} has no key that could be renewed or revoked; enrolled are"
        f" {', '.join(names) or 'none yet'}",
        remedy=f"`{enrols}` enrols it.",
    )
