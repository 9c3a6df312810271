"""The coordinator's port: TLS and enrolled keys, or plain gRPC on this machine only."""

import logging
from collections.abc import Callable, Sequence

from erosion.common.errors import EnrolmentError, LinkError
from erosion.common.support import expiry
from erosion.common.support.network import is_loopback
from erosion.server.enrolment.authorizer import Authorizer
from erosion.server.enrolment.certificates import load_certificate
from erosion.server.enrolment.federation_folder import DEFAULT_PORT, FederationFolder
from erosion.server.enrolment.serving_certificate import ServingCertificate
from erosion.server.link import Link

logger = logging.getLogger("erosion.admission")


def make_link(
    hospitals: Sequence[str],
    address: str | None,
    federation: FederationFolder | None,
    *,
    is_short_of_memory: bool = False,
) -> Link:
    """A link that is not started; without a `federation` it is neither encrypted nor enrolled.

    `address` None: every address of this machine at the port that the site kits name, or the
    loopback's. `hospitals`: their keys' expiry is watched. `is_short_of_memory`: see `Link`.

    Raises LinkError, EnrolmentError.
    """
    if federation is None:
        address = address or f"127.0.0.1:{DEFAULT_PORT}"
        if not is_loopback(address):
            raise LinkError(
                f"--address {address}: --insecure is for this machine only. Use 127.0.0.1:PORT, or"
                " make a federation with `erosion enroll init` and leave --insecure out."
            )
        return Link(address, is_short_of_memory=is_short_of_memory)
    place = federation.read_place()
    certificate = ServingCertificate(federation)
    admission = Authorizer(federation)
    look_at_expiry = _told_once(
        lambda: expiry_warnings(hospitals, federation, certificate, admission)
    )
    look_at_expiry()
    return Link(
        address or f"0.0.0.0:{place.port}",
        certificate=certificate,
        admission=admission,
        is_short_of_memory=is_short_of_memory,
        address_in_kits=place.address,
        look_at_expiry=look_at_expiry,
    )


def _told_once(find: Callable[[], Sequence[str]]) -> Callable[[], None]:
    """Logs what it finds, less what it has found the last time."""
    told: list[str] = []

    def tell() -> None:
        found = find()
        for warning in found:
            if warning not in told:
                logger.warning("%s", warning)
        told[:] = found

    return tell


def expiry_warnings(
    hospitals: Sequence[str],
    federation: FederationFolder,
    certificate: ServingCertificate,
    admission: Authorizer,
) -> list[str]:
    """What will soon keep one of `hospitals` out, or does so already."""
    warnings = []
    if expiry.ends_soon(certificate.expires):
        warnings.append(
            f"the coordinator's certificate is {expiry.in_words(certificate.expires)}; run:"
            f" erosion enroll renew coordinator{federation.option}"
        )
    authority = load_certificate(federation.authority).not_valid_after_utc
    if expiry.ends_soon(authority):
        warnings.append(
            f"the federation's authority is {expiry.in_words(authority)}; a new one means a new"
            " kit for every site"
        )
    expiries = admission.expiries()
    for hospital in hospitals:
        if (reason := admission.why_not(hospital)) is not None:
            remedy = "renew" if hospital in expiries else "site"
            warnings.append(
                f"{hospital} cannot connect: {reason}; run:"
                f" erosion enroll {remedy} {hospital}{federation.option}"
            )
        elif hospital in expiries and expiry.ends_soon(expiries[hospital]):
            warnings.append(
                f"the key of {hospital} is {expiry.in_words(expiries[hospital])}; run: erosion"
                f" enroll renew {hospital}{federation.option}"
            )
    return warnings


def federation_or_none(folder: FederationFolder, *, insecure: bool) -> FederationFolder | None:
    """The federation to serve; None where the operator wants none. Raises EnrolmentError."""
    if insecure:
        return None
    if not folder.place.exists():
        raise EnrolmentError(
            f"There is no federation in {folder.path}. --federation says where it is;"
            f" `erosion enroll init{folder.option}` makes one, and `erosion enroll site"
            f" NAME{folder.option}` a kit for each hospital. To try things on this machine alone,"
            " use --insecure, or `erosion testbed`."
        )
    return folder
