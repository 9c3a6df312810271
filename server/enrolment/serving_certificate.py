"""The certificate that the coordinator shows to sites, replaced while it runs."""

import logging
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import grpc
from cryptography import x509

from erosion.common.errors import EnrolmentError
from erosion.common.support import expiry
from erosion.common.support.files import version_of
from erosion.server.enrolment.certificates import Identity, load_identity, validity_in_words

logger = logging.getLogger("erosion.door")


class ServingCertificate:
    """Read again at the next connection after `erosion enroll renew coordinator`."""

    def __init__(self, path: Path) -> None:
        """Raises EnrolmentError where it cannot be read or has expired."""
        self._path = path
        self._seen = version_of(path)
        self._identity = load_identity(path)
        self._certificate = x509.load_pem_x509_certificate(self._identity.certificate)
        if expiry.has_ended(self.expires):
            raise EnrolmentError(
                f"The coordinator's certificate {path} {expiry.in_words(self.expires)}, and no site"
                " would accept it. Run: erosion enroll renew coordinator"
            )

    @property
    def expires(self) -> datetime:
        """When sites stop accepting it."""
        return self._certificate.not_valid_after_utc

    @property
    def words(self) -> str:
        """For which names it is, and until when."""
        return validity_in_words(self._certificate)

    def credentials(self, *, on_handshake: Callable[[], None]) -> grpc.ServerCredentials:
        """For a gRPC server; `on_handshake` is called when a connection begins."""

        def latest() -> grpc.ServerCertificateConfiguration | None:
            on_handshake()
            return _configuration(self._identity) if self._reload() else None

        return grpc.dynamic_ssl_server_credentials(_configuration(self._identity), latest)

    def _reload(self) -> bool:
        """Whether the file has another certificate now."""
        seen = version_of(self._path)
        if seen == self._seen:
            return False
        self._seen = seen
        try:
            self._identity = load_identity(self._path)
            self._certificate = x509.load_pem_x509_certificate(self._identity.certificate)
        except EnrolmentError as problem:
            logger.error("the certificate stays as it was: %s", problem)
            return False
        logger.info("the certificate was renewed: %s", self.words)
        return True


def _configuration(identity: Identity) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(identity.key, identity.certificate)])
