"""A federation's folder: its authority, its certificate and its enrolled keys."""

import fcntl
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from shlex import quote
from time import monotonic, sleep
from typing import Annotated, BinaryIO

import tomli_w
from pydantic import AfterValidator, Field

from erosion.common.errors import EnrolmentError
from erosion.common.settings.base import Settings, read_toml, validate
from erosion.common.settings.names import Name
from erosion.common.support.files import open_lock, write_private

DEFAULT_FOLDER = Path("federation")
DEFAULT_PORT = 9092
LONGEST_WAIT = 60  # seconds for another enrolment; one takes less than a second


def checked_host(value: str) -> str:
    """A DNS name or an IP address; raises ValueError."""
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
    """`[authorities.HOSPITAL]`: a hospital whose site shows a certificate of its own authority."""

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

    @property
    def option(self) -> str:
        """What follows `erosion enroll WHAT` in a remedy, so that it is about this folder."""
        return "" if self.path == DEFAULT_FOLDER else f" --folder {quote(str(self.path))}"

    @property
    def place(self) -> Path:
        """Where sites find the coordinator."""
        return self.path / "federation.toml"

    @property
    def authority_key(self) -> Path:
        """With it anyone can pose as the coordinator; it may be kept on another medium."""
        return self.path / "ca.key"

    @property
    def authority(self) -> Path:
        """The certificate that every site trusts."""
        return self.path / "ca.crt"

    @property
    def coordinator(self) -> Path:
        """The coordinator's key and certificate in one file, so that they change together."""
        return self.path / "coordinator.pem"

    @property
    def roster(self) -> Path:
        """Which key is which hospital's."""
        return self.path / "roster.toml"

    def kit(self, hospital: str) -> Path:
        """What is handed to one hospital."""
        return self.path / "kits" / f"{hospital}.tar.gz"

    def renewal(self, hospital: str) -> Path:
        """The same later: the first kit may still wait for its hospital. No name has a dot."""
        return self.path / "kits" / f"{hospital}.renewal.tar.gz"

    def read_place(self) -> Address:
        """Raises EnrolmentError where there is no federation here, or its file is malformed."""
        if not self.place.exists():
            raise EnrolmentError(
                f"There is no federation in {self.path}. `erosion enroll init` makes one;"
                " --folder says where it is."
            )
        raw = read_toml(self.place, "federation file", EnrolmentError)
        return validate(Address, raw, f"Federation file {self.place}", EnrolmentError)

    def write_place(self, place: Address) -> None:
        """Replace `federation.toml`."""
        write_private(self.place, tomli_w.dumps(place.model_dump(mode="json")))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One enrolment at a time, so that none overwrites another's line in the roster.

        Raises EnrolmentError where another one does not end.
        """
        with open_lock(self.path / ".lock") as lock:
            give_up_at = monotonic() + LONGEST_WAIT
            while not _taken(lock):
                if monotonic() > give_up_at:
                    raise EnrolmentError(
                        f"Another `erosion enroll` is at work in {self.path}, and has been for"
                        f" {LONGEST_WAIT} s. Let it end, or end it, and run the command again."
                    )
                sleep(0.05)
            yield


def _taken(lock: BinaryIO) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
