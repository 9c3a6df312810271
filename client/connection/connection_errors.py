"""Connection failures in words that say what to do."""

from dataclasses import dataclass

import grpc

from erosion.common.protocol import admission_terms
from erosion.common.protocol.admission_terms import Reason
from erosion.common.support.text import printable


@dataclass(frozen=True, slots=True)
class ConnectionProblem:
    """Why a call failed."""

    text: str
    is_final: bool = False  # trying again is of no use before a person has done something


# What gRPC says, in the order in which to look for it -> what it means.
_HANDSHAKE = (
    (
        "certificate has expired",
        "the certificate of {address} has expired, or this machine's clock is wrong; the"
        " coordinator renews it with `erosion enroll renew coordinator`",
    ),
    (
        "certificate is not yet valid",
        "the certificate of {address} is not valid yet: this machine's clock is behind; set it by"
        " NTP",
    ),
    (
        "Hostname Verification Check failed",
        "the certificate of {address} is for other names: dial one of those, or have the"
        " coordinator renew it for this one with `erosion enroll renew coordinator --host NAME`",
    ),
    (
        "WRONG_VERSION_NUMBER",
        "what listens at {address} does not speak TLS: check coordinator.address and its port",
    ),
    (
        "andshake failed",
        "the certificate of {address} was not accepted, because another authority than the one in"
        " coordinator.root_certificate issued it. The usual reason is a firewall on the way that"
        " opens TLS: `erosion check` names who issued the certificate. Else ask the coordinator for"
        " the current ca.crt, and compare its fingerprint by telephone",
    ),
    (
        "Socket closed",
        "{address} ended the connection before anything was said: the coordinator does not accept"
        " this site's certificate (it is of another federation, or has expired there), or something"
        " on the way does not let TLS pass; `erosion check` says which",
    ),
    (
        "security handshaker",
        "coordinator.root_certificate does not hold a certificate in PEM: take ca.crt from the"
        " site kit again",
    ),
    (
        "hostname lookup error",
        "the name in {address} is not known to the DNS: check coordinator.address",
    ),
)


def connection_error(problem: grpc.RpcError, address: str, *, encrypted: bool) -> ConnectionProblem:
    """Explain a failed call to `address`."""
    if not isinstance(problem, grpc.Call):
        return ConnectionProblem(f"the coordinator at {address} is lost: {problem}")
    details, code = printable(problem.details() or "", at_most=1000), problem.code()
    said = dict(problem.trailing_metadata() or ()).get(admission_terms.REASON)
    if said is not None:
        final = said in set(Reason) and Reason(said).is_final
        return ConnectionProblem(
            f"the coordinator at {address} did not let this site in: {details}", final
        )
    if code == grpc.StatusCode.UNAVAILABLE:
        for sign, meaning in _HANDSHAKE:
            if sign in details and (encrypted or "certificate" not in meaning):
                return ConnectionProblem(meaning.format(address=address))
        return ConnectionProblem(
            f"the coordinator at {address} cannot be reached"
            + ("" if encrypted else ", or expects TLS (coordinator.root_certificate is not set)")
        )
    if code in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED):
        return ConnectionProblem(f"the coordinator at {address} does not answer in time")
    return ConnectionProblem(f"the coordinator at {address} answered {code.name}: {details}")
