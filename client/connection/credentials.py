"""A site's way to its coordinator: the address, the route there, and the certificate."""

import hashlib
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from erosion.client.connection.line import SiteLine, Tls
from erosion.client.connection.proxy import proxy_for
from erosion.client.site_file import CoordinatorAddress
from erosion.common.errors import SiteError
from erosion.common.support import expiry
from erosion.common.support.files import read_named
from erosion.common.support.keys import (
    certificate_in,
    certified_key,
    load_private_key,
    private_pem,
    public_pem,
)
from erosion.common.support.network import is_loopback


@dataclass(frozen=True, slots=True)
class Credentials:
    """How to reach the coordinator, checked, so that a damaged file shows at the start."""

    address: str
    tls: Tls | None = None  # None: the line is not encrypted
    proxy: str | None = field(default=None, repr=False)  # may hold a password

    @property
    def expires(self) -> datetime | None:
        """When the site's certificate ends; None: it has none."""
        return (
            None if self.tls is None else certificate_in(self.tls.certificate).not_valid_after_utc
        )

    def connect(self) -> SiteLine:
        """A connection that is not open yet."""
        return SiteLine(self.address, tls=self.tls, proxy=self.proxy)


def credentials_for(coordinator: CoordinatorAddress) -> Credentials:
    """The keys that the site file names; raises SiteError."""
    address = coordinator.address
    proxy = proxy_for(address, coordinator.proxy)
    files = coordinator.root_certificate, coordinator.certificate, coordinator.private_key
    root_file, certificate_file, key_file = files
    if root_file is None or certificate_file is None or key_file is None:
        if not is_loopback(address):
            raise SiteError(
                f"coordinator.address = {address!r}; without coordinator.root_certificate,"
                " coordinator.certificate and coordinator.private_key the line is neither encrypted"
                " nor authenticated, which is allowed on this machine only (127.0.0.1). All come in"
                " the site kit."
            )
        return Credentials(address, proxy=proxy)
    _, root = _read("coordinator.root_certificate", root_file, alone=True)
    pem, certificate = _read("coordinator.certificate", certificate_file)
    key = load_private_key(key_file, SiteError)
    public = certified_key(certificate)
    if public is None or public_pem(public) != public_pem(key.public_key()):
        raise SiteError(
            f"coordinator.certificate: {certificate_file} is not for the key {key_file}. Take both"
            " from the same site kit: erosion enroll install KIT SITE.toml, with --key FILE where"
            " this site made the key itself"
        )
    ends = certificate.not_valid_after_utc
    if expiry.has_ended(ends):
        raise SiteError(
            f"This site's certificate {certificate_file} {expiry.in_words(ends)}. Ask the"
            " coordinator for a new kit (erosion enroll renew NAME), then: erosion enroll install"
            " KIT SITE.toml"
        )
    # The site's books know the coordinator by these bytes: other white space is no other one.
    trusted = root.public_bytes(serialization.Encoding.PEM)
    return Credentials(address, Tls(trusted, pem, private_pem(key)), proxy)


def known_as(credentials: Credentials) -> str:
    """What the coordinator is known by in this site's book: whom it trusts, or the address."""
    if credentials.tls is None:
        return credentials.address
    return hashlib.sha256(credentials.tls.root).hexdigest()[:16]


def _read(what: str, path: Path, *, alone: bool = False) -> tuple[bytes, x509.Certificate]:
    try:
        pem = read_named(path)
        return pem, certificate_in(pem, alone=alone)
    except (OSError, ValueError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else problem
        raise SiteError(
            f"{what}: {path}: {reason}. Take {path.name} from the site kit again."
        ) from None
