"""A federation's folder: its authority, its certificate and its registry of enrolled keys."""

import fcntl
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from shlex import quote
from time import monotonic, sleep
from typing import Annotated, Literal, Self

import tomli_w
from pydantic import AfterValidator, AwareDatetime, Field, field_validator, model_validator

from erosion_common.errors import EnrolmentError
from erosion_common.sealed.pinned_keys import as_text
from erosion_common.settings.base import Settings, read_toml, validate
from erosion_common.settings.names import Name
from erosion_common.support import expiry
from erosion_common.support.files import FileIn, naming, open_lock, write_private
from erosion_common.support.keys import PublicKey, fingerprint, public_pem, read_public_key

DEFAULT_FOLDER = Path("federation")
DEFAULT_PORT = 9092
LONGEST_WAIT = 60  # seconds for another enrolment; one takes less than a second


def checked_host(value: str) -> str:
    """Return a DNS name or an IP address; raises ValueError."""
    try:
        return str(ip_address(value.strip("[]")))
    except ValueError:
        pass
    label = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
    if len(value) > 253 or not re.fullmatch(rf"{label}(\.{label})*", value):
        raise ValueError(
            'give a DNS name or an IP address without a port, for example "erosion.example.org"'
        )
    return value.lower()


Host = Annotated[str, AfterValidator(checked_host)]


class OwnAuthority(Settings):
    """`[authorities.HOSPITAL]`: a hospital with its own certificate authority."""

    certificate: Path  # of the authority that signs it, PEM; relative to the federation's folder
    name: str = Field(min_length=1)  # in the site's certificate: its common or alternative name


class Address(Settings):
    """`federation.toml`: where sites find the coordinator."""

    hosts: tuple[Host, ...] = Field(min_length=1)  # in the certificate; sites dial the first
    port: int = Field(ge=1, le=65535)
    authorities: dict[Name, OwnAuthority] = Field(default_factory=dict)

    @property
    def address(self) -> str:
        """What a site dials: "host:port"."""
        host = self.hosts[0]
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class FederationFolder:
    """The paths of one federation. `erosion server` needs all of them but the authority's key."""

    path: Path

    place = FileIn("federation.toml")  # where sites find the coordinator
    authority_key = FileIn("ca.key")  # its holder can pose as the coordinator; may be elsewhere
    authority = FileIn("ca.crt")  # that every site trusts
    coordinator = FileIn("coordinator.pem")  # key and certificate, so that they change together
    roster = FileIn("roster.toml")  # which key is which hospital's

    @property
    def option(self) -> str:
        """What follows `erosion enroll WHAT` in a remedy, so that it is about this folder."""
        return "" if self.path == DEFAULT_FOLDER else f" --folder {quote(str(self.path))}"

    def kit(self, hospital: str) -> Path:
        """Return what is handed to one hospital."""
        return self.path / "kits" / f"{hospital}.tar.gz"

    def renewal(self, hospital: str) -> Path:
        """Return the path of a later kit: the first may still wait for its hospital."""
        return self.path / "kits" / f"{hospital}.renewal.tar.gz"

    def read_place(self) -> Address:
        """Raises EnrolmentError where there is no federation here, or its file is malformed."""
        if not self.place.exists():
            raise EnrolmentError(
                f"There is no federation in {self.path}",
                remedy="`erosion enroll init` makes one; --folder says where it is.",
            )
        raw = read_toml(self.place, "federation file", EnrolmentError)
        return validate(Address, raw, f"Federation file {self.place}", EnrolmentError)

    def write_place(self, place: Address) -> None:
        """Replace `federation.toml`."""
        write_private(self.place, tomli_w.dumps(place.model_dump(mode="json")))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Let one enrolment work at a time. Raises EnrolmentError after LONGEST_WAIT."""
        place = self.path / ".lock"
        with open_lock(place) as lock:
            give_up_at = monotonic() + LONGEST_WAIT
            while True:
                try:
                    with naming(place):  # some network file systems have no locks
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if monotonic() > give_up_at:
                        raise EnrolmentError(
                            f"another `erosion enroll` has been at work for {LONGEST_WAIT} s",
                            where=str(self.path),
                            remedy="Let it end, or end it, and run the command again.",
                        ) from None
                sleep(0.05)
            yield


class EnrolledKey(Settings):
    """One key. A revoked one stays here, so that its holder learns why it is denied."""

    hospital: Name
    public_key: str  # PEM
    certificate: str | None = None  # PEM, the latest of this key; None: enrolled without one
    enrolled: AwareDatetime
    revoked: AwareDatetime | None = None
    expires: AwareDatetime  # the last: a file that is cut off makes no revoked key a current one

    @field_validator("public_key")
    @classmethod
    def _canonical(cls, value: str) -> str:
        try:
            key = read_public_key(value.encode(), "public_key", EnrolmentError)
        except EnrolmentError as problem:
            raise ValueError(str(problem)) from None
        return public_pem(key).decode()

    @property
    def key(self) -> PublicKey:
        """The key itself."""
        return read_public_key(self.public_key.encode(), self.hospital, EnrolmentError)

    @property
    def fingerprint(self) -> str:
        """For comparing by telephone."""
        return fingerprint(self.key)

    @property
    def trouble(self) -> str | None:
        """Why the key is not let in now, as the end of "its key ..."; None where it is."""
        if self.revoked is not None:
            return f"was revoked on {self.revoked:%Y-%m-%d}"
        if expiry.has_ended(self.expires):
            today = f"{expiry.now():%Y-%m-%d}"  # with it people see which clock is wrong
            return f"expired on {self.expires:%Y-%m-%d}, by the coordinator's clock of {today}"
        return None


class KeyRegistry(Settings):
    """All keys that were ever enrolled. A hospital has one that is not revoked, or none."""

    format: Literal[1] = 1
    keys: tuple[EnrolledKey, ...] = ()

    @model_validator(mode="after")
    def _unambiguous(self) -> Self:
        current = Counter(key.hospital for key in self.keys if key.revoked is None)
        if twice := sorted(name for name, count in current.items() if count > 1):
            raise ValueError(
                f"{', '.join(twice)} has two keys; take one out of the file, or give it the time"
                " from which on it is not let in (revoked = ...)"
            )
        texts = Counter(key.public_key for key in self.keys)
        if shared := sorted({key.hospital for key in self.keys if texts[key.public_key] > 1}):
            raise ValueError(f"one public key stands here twice ({', '.join(shared)})")
        return self

    def current(self, hospital: str) -> EnrolledKey | None:
        """Return the hospital's key that is not revoked; it may have expired."""
        return next((k for k in self.keys if k.hospital == hospital and k.revoked is None), None)

    def latest(self, hospital: str) -> EnrolledKey | None:
        """Return the current key, else the one that was enrolled last."""
        others = [key for key in self.keys if key.hospital == hospital]
        return self.current(hospital) or max(others, key=lambda k: k.enrolled, default=None)

    @property
    def in_force(self) -> list[EnrolledKey]:
        """The keys that are not revoked, by hospital."""
        return sorted((k for k in self.keys if k.revoked is None), key=lambda k: k.hospital)

    def peers_text(self, *, without: str = "") -> str:
        """Return the hospitals' public keys for each site to pin; "" where nobody else is."""
        return as_text({k.hospital: k.key for k in self.in_force if k.hospital != without})

    def changed(self, key: EnrolledKey, **values: object) -> "KeyRegistry":
        """Return the roster with some values of one key replaced."""
        keys = (k.model_copy(update=values) if k == key else k for k in self.keys)
        return KeyRegistry(keys=tuple(keys))

    def added(self, key: EnrolledKey) -> "KeyRegistry":
        """Return the roster with one key more."""
        return KeyRegistry(keys=(*self.keys, key))


def read_key_registry(path: Path) -> KeyRegistry:
    """Raises EnrolmentError."""
    raw = read_toml(path, "roster", EnrolmentError)
    if not raw:  # else every hospital would be taken for one that was never enrolled
        raise EnrolmentError(f"The roster {path} is empty", remedy="Restore it from the backup.")
    return validate(KeyRegistry, raw, f"Membership {path}", EnrolmentError)


def write_key_registry(path: Path, roster: KeyRegistry) -> None:
    """Replace the file; a reader sees either the old registry or the new one."""
    write_private(path, tomli_w.dumps(roster.model_dump(exclude_none=True), multiline_strings=True))
