"""A site's way to its coordinator: the address, the trusted authority and the signing key."""

from dataclasses import dataclass, field

from cryptography import x509

from erosion.client.connection.fleet import FleetConnection
from erosion.client.site_file import CoordinatorAddress
from erosion.common.errors import SiteError
from erosion.common.support.keys import PrivateKey, load_private_key
from erosion.common.support.network import is_loopback


@dataclass(frozen=True, slots=True)
class Credentials:
    """How to reach the coordinator: read once, so that a damaged file shows at the start."""

    address: str
    root_certificate: bytes | None = None  # PEM
    private_key: PrivateKey | None = field(default=None, repr=False)

    def connect(self) -> FleetConnection:
        """A connection that is not signed in yet."""
        return FleetConnection(
            self.address, root_certificate=self.root_certificate, private_key=self.private_key
        )


def credentials_for(coordinator: CoordinatorAddress) -> Credentials:
    """The keys that the site file names; raises SiteError."""
    if coordinator.root_certificate is None or coordinator.private_key is None:
        if not is_loopback(coordinator.address):
            raise SiteError(
                f"coordinator.address = {coordinator.address!r}; without"
                " coordinator.root_certificate and coordinator.private_key the line is neither"
                " encrypted nor signed, which is allowed on this machine only (127.0.0.1). Both"
                " come in the site kit."
            )
        return Credentials(coordinator.address)
    path = coordinator.root_certificate
    try:
        root = path.read_bytes()
        x509.load_pem_x509_certificate(root)
    except (OSError, ValueError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else "no certificate in PEM"
        raise SiteError(
            f"coordinator.root_certificate: {path}: {reason}. Take ca.crt from the site kit again."
        ) from None
    return Credentials(
        coordinator.address, root, load_private_key(coordinator.private_key, SiteError)
    )
