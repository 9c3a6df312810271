"""The certificate that the coordinator shows to sites, and whose certificates it accepts."""

import logging
import threading
from collections.abc import Callable
from datetime import datetime

import grpc
from cryptography import x509

from erosion.common.errors import EnrolmentError
from erosion.common.support import expiry
from erosion.common.support.files import read_named, version_of
from erosion.server.enrolment.certificates import (
    Identity,
    load_certificate,
    load_identity,
    validity_in_words,
)
from erosion.server.enrolment.federation_folder import FederationFolder
from erosion.server.enrolment.own_authority import OwnAuthorities, read_own_authorities

logger = logging.getLogger("erosion.admission")


class ServingCertificate:
    """Read again when the federation's files have changed, at the next connection at the latest."""

    def __init__(self, folder: FederationFolder) -> None:
        """Raises EnrolmentError where it cannot be read or has expired."""
        self._folder = folder
        self._own = OwnAuthorities()
        self._lock = threading.RLock()
        self._seen, self._problem = self._versions(), ""  # with the latest reading
        self._handed = self._seen  # versions of what gRPC has
        self._load()
        if expiry.has_ended(self.expires):
            raise EnrolmentError(
                f"The coordinator's certificate {folder.coordinator}"
                f" {expiry.in_words(self.expires)}, and no site would accept it."
                f" Run: erosion enroll renew coordinator{folder.option}"
            )

    @property
    def expires(self) -> datetime:
        """When sites stop accepting it."""
        with self._lock:
            self._reload()
            return self._certificate.not_valid_after_utc

    @property
    def trouble(self) -> str | None:
        """Why no site accepts it any more, and the remedy; None where one would."""
        if not expiry.has_ended(self.expires):
            return None
        return (
            f"the coordinator's certificate {expiry.in_words(self.expires)}; run:"
            f" erosion enroll renew coordinator{self._folder.option}"
        )

    @property
    def words(self) -> str:
        """For which names it is, and until when."""
        return validity_in_words(self._certificate)

    def credentials(self, *, on_handshake: Callable[[], None]) -> grpc.ServerCredentials:
        """For a gRPC server; `on_handshake` is called when a connection begins.

        A site without a certificate of one of the federation's authorities does not get beyond
        the handshake.
        """

        def latest() -> grpc.ServerCertificateConfiguration | None:
            on_handshake()
            with self._lock:
                self._reload()
                if self._seen == self._handed:
                    return None
                self._handed = self._seen
                return self._configuration()

        with self._lock:
            self._handed = self._seen
            first = self._configuration()
        return grpc.dynamic_ssl_server_credentials(
            first, latest, require_client_authentication=True
        )

    def _versions(self) -> tuple[object, ...]:
        folder = self._folder
        files = (folder.coordinator, folder.authority, folder.place, *self._own.files)
        return tuple(map(version_of, files))

    def _load(self) -> None:
        identity = load_identity(self._folder.coordinator)
        own = read_own_authorities(self._folder)
        load_certificate(self._folder.authority)  # gRPC says nothing of a file without one
        roots = read_named(self._folder.authority) + own.pem
        self._identity: Identity = identity
        self._own, self._roots = own, roots
        self._certificate = x509.load_pem_x509_certificate(identity.certificate)

    def _reload(self) -> bool:
        """Read the files if they have changed; False where they have not."""
        seen = self._versions()
        if seen == self._seen:
            return False
        try:
            self._load()
        except (EnrolmentError, OSError) as problem:
            if str(problem) != self._problem:
                logger.error("the certificate stays as it was: %s", problem)
            self._problem = str(problem)
            return False
        self._seen, self._problem = seen, ""
        logger.info("the certificate was read again: %s", self.words)
        return True

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        pair = (self._identity.key, self._identity.certificate)
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=self._roots)
