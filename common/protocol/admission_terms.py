"""Details of a refused call, beside the protocol: the coordinator's clock and its reasons.

It travels as gRPC metadata, which a stock SuperLink does not send and a stock SuperNode does not
read.
"""

from enum import StrEnum

TIME = "erosion-time"  # the coordinator's clock, ISO 8601 in UTC
HOSPITAL = "erosion-hospital"  # whose key it was that signed the call
EXPIRES = "erosion-key-expires"  # when that key ends, ISO 8601 in UTC
CERTIFICATE = "erosion-certificate-expires"  # when the coordinator's ends, ISO 8601 in UTC
REASON = "erosion-reason"  # a Reason; the call's details say it in words

# A call is signed together with the site's time, and is good for so long. Flower's own limits.
SECONDS_AHEAD, SECONDS_BEHIND = 5, 305


class Reason(StrEnum):
    """Why a site is not let in."""

    NOT_ENROLLED = "not-enrolled"
    REVOKED = "revoked"
    EXPIRED = "expired"
    CLOCK = "clock"
    IN_USE = "in-use"  # another connection with the same key stands
    SIGNATURE = "signature"  # missing, wrong, or not for this call

    @property
    def is_final(self) -> bool:
        """Whether trying again is of no use before a person has done something."""
        return self in (Reason.NOT_ENROLLED, Reason.REVOKED, Reason.EXPIRED)
