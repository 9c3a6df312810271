"""Creates a federation, and enrols, renews and revokes its sites."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from shlex import quote

from erosion.common.errors import EnrolmentError
from erosion.common.settings.names import checked_hospital
from erosion.common.support import expiry
from erosion.common.support.files import make_private_folder, write_private
from erosion.common.support.keys import (
    PrivateKey,
    PublicKey,
    new_private_key,
    private_pem,
    public_pem,
)
from erosion.server.enrolment import certificates
from erosion.server.enrolment.certificates import COORDINATOR_DAYS
from erosion.server.enrolment.federation_folder import Address, FederationFolder
from erosion.server.enrolment.key_registry import (
    EnrolledKey,
    KeyRegistry,
    read_key_registry,
    write_key_registry,
)
from erosion.server.enrolment.peers_file import peers_text
from erosion.server.enrolment.signing_request import read_request
from erosion.server.enrolment.site_kit import write_kit, write_renewal

SITE_DAYS = 365
COORDINATOR = "coordinator"  # what `erosion enroll renew` calls it, so no site may


@dataclass(frozen=True, slots=True)
class Enrolment:
    """A site's line in the roster, and the archive to hand over."""

    key: EnrolledKey
    kit: Path


@dataclass(frozen=True, slots=True)
class Revocation:
    """What a hospital came in by and does no more."""

    key: EnrolledKey | None
    own_authority: bool


def init_federation(
    folder: FederationFolder, place: Address, *, days: float = COORDINATOR_DAYS
) -> None:
    """Make the authority, the coordinator's certificate and an empty roster."""
    if folder.authority.exists() and not folder.place.exists():
        raise EnrolmentError(
            f"{folder.path} holds an authority, but no {folder.place.name}. Restore that from the"
            " backup; if no kit was handed out yet, remove the folder and make the federation anew."
        )
    if folder.place.exists():
        raise EnrolmentError(
            f"{folder.path} holds a federation already. Its certificate is renewed, also for other"
            f" names, by `erosion enroll renew coordinator{folder.option}`; a second federation"
            " needs another --folder."
        )
    try:
        make_private_folder(folder.path)
    except OSError as problem:
        raise EnrolmentError(f"The folder {folder.path} cannot be made: {problem}.") from None
    authority = certificates.new_authority()
    identity = certificates.issue(authority, place.hosts, days)
    write_private(folder.authority_key, private_pem(authority.key))
    write_private(folder.authority, certificates.pem(authority.certificate))
    _write_identity(folder, identity)
    write_key_registry(folder.roster, KeyRegistry())
    folder.write_place(place)


def renew_coordinator(
    folder: FederationFolder, hosts: Sequence[str] = (), *, days: float = COORDINATOR_DAYS
) -> Address:
    """A new certificate; a running coordinator shows it from the next connection on."""
    folder.read_place()
    with folder.locked():
        place = folder.read_place()
        authority = certificates.load_authority(folder.authority_key, folder.authority)
        if hosts:
            place = place.model_copy(update={"hosts": tuple(hosts)})
            folder.write_place(place)
        _write_identity(folder, certificates.issue(authority, place.hosts, days))
    return place


def enrol_site(
    folder: FederationFolder,
    hospital: str,
    *,
    request: Path | None = None,
    out: Path | None = None,
    days: float = SITE_DAYS,
) -> Enrolment:
    """Certify a hospital's key: the one of the site's own request, or a new one in its kit."""
    _check_name(hospital)
    place = folder.read_place()
    with folder.locked():
        roster = read_key_registry(folder.roster)
        if (current := roster.current(hospital)) is not None:
            renew = f"`erosion enroll renew {hospital}{folder.option}` prolongs it"
            if request is None:
                remedy = f"{renew}, with --new-key it is replaced."
            else:
                sign = _sign_command(folder, hospital, request)
                remedy = f"`{sign} --replace` puts the request's in its place; {renew}."
            raise EnrolmentError(
                f"{hospital} has a key already, {expiry.in_words(current.expires)}. {remedy}"
            )
        private, public = _key(request)
        key = _certified(folder, roster, hospital, public, _end(days))
        kit = out or folder.kit(hospital)
        roster = roster.added(key)
        authority = folder.authority.read_bytes()
        write_kit(kit, key, place, authority, private, peers_text(roster, without=hospital))
        write_key_registry(folder.roster, roster)
        return Enrolment(key, kit)


def renew_site(
    folder: FederationFolder,
    hospital: str,
    *,
    new_key: bool = False,
    request: Path | None = None,
    out: Path | None = None,
    days: float = SITE_DAYS,
) -> Enrolment:
    """A new certificate for a hospital's key, or for another, which replaces it at once.

    The site installs the kit; until then it comes in by the certificate that it has, if its key
    stays the same and that certificate has not expired.
    """
    folder.read_place()
    with folder.locked():
        roster = read_key_registry(folder.roster)
        current = _current(folder, roster, hospital, request)
        private: PrivateKey | None = None
        if new_key or request is not None:
            private, public = _key(request)
        else:
            public = current.key
        if public_pem(public).decode() == current.public_key:
            expires = _end(days)
            certificate = _certificate(folder, hospital, public, expires)
            changes = {"expires": expires, "certificate": certificate}
            key = current.model_copy(update=changes)
            roster = roster.changed(current, **changes)
        else:
            key = _certified(folder, roster, hospital, public, _end(days))
            roster = roster.changed(current, revoked=expiry.now()).added(key)
        kit = out or folder.renewal(hospital)
        write_renewal(
            kit, key, folder.authority.read_bytes(), private, peers_text(roster, without=hospital)
        )
        write_key_registry(folder.roster, roster)
        return Enrolment(key, kit)


def revoke_site(folder: FederationFolder, hospital: str) -> Revocation:
    """Keep the hospital out from now on; a running coordinator notices within seconds.

    An authority of its own is taken out of `federation.toml`, because it could certify other keys.
    """
    folder.read_place()
    with folder.locked():
        place, roster = folder.read_place(), read_key_registry(folder.roster)
        has_authority = hospital in place.authorities
        key = roster.current(hospital) if has_authority else _current(folder, roster, hospital)
        if key is not None:
            write_key_registry(folder.roster, roster.changed(key, revoked=expiry.now()))
            for kit in (folder.kit(hospital), folder.renewal(hospital)):
                kit.unlink(missing_ok=True)
        if has_authority:
            others = {name: own for name, own in place.authorities.items() if name != hospital}
            folder.write_place(place.model_copy(update={"authorities": others}))
        return Revocation(key, has_authority)


def _key(request: Path | None) -> tuple[PrivateKey | None, PublicKey]:
    """The key of a site's request, or a new one with its private half."""
    if request is not None:
        return None, read_request(request).key
    private = new_private_key()
    return private, private.public_key()


def _certified(
    folder: FederationFolder,
    roster: KeyRegistry,
    hospital: str,
    public: PublicKey,
    expires: datetime,
) -> EnrolledKey:
    text = public_pem(public).decode()
    if (known := next((k for k in roster.keys if k.public_key == text), None)) is not None:
        was = "" if known.trouble is None else f" and {known.trouble}"
        raise EnrolmentError(
            f"This key is {known.hospital}'s already{was}. Every enrolment needs a key of its own:"
            f" the site makes one with `erosion enroll request {hospital}`."
        )
    certificate = _certificate(folder, hospital, public, expires)
    return EnrolledKey(
        hospital=hospital,
        public_key=text,
        certificate=certificate,
        enrolled=expiry.now(),
        expires=expires,
    )


def _certificate(
    folder: FederationFolder, hospital: str, public: PublicKey, expires: datetime
) -> str:
    authority = certificates.load_authority(folder.authority_key, folder.authority)
    issued = certificates.issue_site(authority, hospital, public, expires)
    return certificates.pem(issued).decode()


def _write_identity(folder: FederationFolder, identity: certificates.Identity) -> None:
    write_private(folder.coordinator, identity.key + identity.certificate)


def _sign_command(folder: FederationFolder, hospital: str, request: Path) -> str:
    """What enrols the hospital by that request."""
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
    names = sorted({key.hospital for key in roster.keys if key.revoked is None})
    raise EnrolmentError(
        f"{hospital} has no key that could be renewed or revoked; enrolled are"
        f" {', '.join(names) or 'none yet'}. `{enrols}` enrols it."
    )


def _check_name(hospital: str) -> None:
    try:
        checked_hospital(hospital)
    except ValueError as problem:
        raise EnrolmentError(f"The site's name {hospital!r}: {problem}.") from None


def _end(days: float) -> datetime:
    return expiry.now() + timedelta(days=days)
