"""Reasons for ending a site's connection, beside the words: gRPC metadata with its status."""

from enum import StrEnum

REASON = "erosion-reason"  # a Reason; the call's details say it in words


class Reason(StrEnum):
    """Why a site is not let in, or its connection is ended."""

    NOT_ENROLLED = "not-enrolled"
    REVOKED = "revoked"
    EXPIRED = "expired"
    NAME = "name"  # the certificate is for another name than the key was enrolled for
    VERSION = "version"  # the two programs do not understand each other
    IN_USE = "in-use"  # another connection with the same key stands
    ABUSE = "abuse"  # it sent what no honest site sends
    SILENT = "silent"  # nothing was heard of it
    HANDSHAKE = "handshake"  # TLS was not agreed

    @property
    def is_final(self) -> bool:
        """Trying again is of no use before a person has done something."""
        return self in (Reason.NOT_ENROLLED, Reason.REVOKED, Reason.EXPIRED, Reason.VERSION)
