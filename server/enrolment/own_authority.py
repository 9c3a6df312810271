"""Hospitals whose sites show certificates of the hospital's own authority."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from erosion.common.errors import EnrolmentError
from erosion.common.support.files import read_named
from erosion.common.support.keys import certificates_in, is_issued_by
from erosion.server.enrolment.certificates import names_in
from erosion.server.enrolment.federation_folder import FederationFolder, OwnAuthority


@dataclass(frozen=True, slots=True)
class _Authority:
    """What vouches for one hospital."""

    hospital: str
    name: str  # in the site's certificate
    issuers: tuple[x509.Certificate, ...]


@dataclass(frozen=True, slots=True)
class OwnAuthorities:
    """One for each hospital that has its own: none of them can vouch for another hospital."""

    authorities: tuple[_Authority, ...] = ()
    pem: bytes = b""  # all of them, for the TLS handshake
    files: tuple[Path, ...] = ()  # from which they were read

    @property
    def hospitals(self) -> Collection[str]:
        """Who has one."""
        return [each.hospital for each in self.authorities]

    def hospital_of(self, certificate: x509.Certificate) -> str | None:
        """The hospital that `certificate` is for; None where it is for none."""
        names = set(names_in(certificate))
        for each in self.authorities:
            if each.name in names and any(is_issued_by(certificate, i) for i in each.issuers):
                return each.hospital
        return None


def read_own_authorities(folder: FederationFolder) -> OwnAuthorities:
    """The authorities that `federation.toml` names. Raises EnrolmentError."""
    authorities, pems, files = [], [], []
    for hospital, own in folder.read_place().authorities.items():
        issuers, pem = read_own_authority(folder, hospital, own)
        authorities.append(_Authority(hospital, own.name, issuers))
        pems.append(pem)
        files.append(folder.path / own.certificate)
    return OwnAuthorities(tuple(authorities), b"\n".join(pems), tuple(files))


def read_own_authority(
    folder: FederationFolder, hospital: str, own: OwnAuthority
) -> tuple[tuple[x509.Certificate, ...], bytes]:
    """One hospital's: its certificates, and the file itself. Raises EnrolmentError."""
    path = folder.path / own.certificate
    try:
        pem = read_named(path)
        issuers = tuple(certificates_in(pem))
    except (OSError, ValueError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else problem
        raise EnrolmentError(
            f"The authority of {hospital}, {path}: {reason}. Put the certificate of the authority"
            f" that signs its site's certificate there, or take authorities.{hospital} out of"
            " federation.toml."
        ) from None
    return issuers, pem
