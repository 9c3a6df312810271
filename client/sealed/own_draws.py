"""A hospital's draws in sealed studies, which come from another secret in every run.

Two sums of one update with other weights would give it away, and so would two sums of nearly the
same: of the same mini-batches in two runs, from parameters that differ by a hair.
"""

import hashlib
import hmac

from erosion.common.protocol.messages import EvaluateRequest, TrainRequest
from erosion.common.sealed.digest import digest


def secret_of(request: TrainRequest | EvaluateRequest, secret: bytes) -> bytes:
    """The hospital's `secret`, in a sealed study made into one for the run alone.

    Without a secret, in simulations and testbeds, everybody can repeat the draws.
    """
    if not (secret and request.study.federation.sealed):
        return secret
    return hmac.digest(secret, digest("run", request.study.digest, request.run), hashlib.sha256)
