"""Connection failures in words that say what to do."""

from dataclasses import dataclass

import grpc

from erosion.common.protocol import admission_terms
from erosion.common.protocol.admission_terms import Reason


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
        " coordinator.root_certificate made it: ask the coordinator for the current ca.crt, and"
        " compare its fingerprint by telephone",
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
        return ConnectionProblem(f"the coordinator at {address} does not answer: {problem}")
    details, code = problem.details() or "", problem.code()
    if (refused := _refusal(problem, details, address)) is not None:
        return refused
    if code == grpc.StatusCode.UNAVAILABLE:
        for sign, meaning in _HANDSHAKE:
            if sign in details:
                return ConnectionProblem(meaning.format(address=address))
        return ConnectionProblem(
            f"the coordinator at {address} cannot be reached"
            + ("" if encrypted else ", or expects TLS (coordinator.root_certificate is not set)")
        )
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return ConnectionProblem(f"the coordinator at {address} does not answer in time")
    return ConnectionProblem(f"the coordinator at {address} answered {code.name}: {details}")


def _refusal(problem: grpc.Call, details: str, address: str) -> ConnectionProblem | None:
    """What the coordinator itself says, or a stock SuperLink in Flower's words."""
    said = dict(problem.trailing_metadata() or ()).get(admission_terms.REASON)
    if said is not None:
        final = said in set(Reason) and Reason(said).is_final
        return ConnectionProblem(
            f"the coordinator at {address} did not let this site in: {details}", final
        )
    if details == "Invalid node ID":
        return ConnectionProblem(
            f"the coordinator at {address} was restarted or has ended this session"
        )
    if "Invalid timestamp" in details:
        return ConnectionProblem(
            "this machine's clock differs from the coordinator's; set it by NTP"
        )
    if "No SuperNode found" in details:
        return ConnectionProblem(
            "the coordinator does not know this site's key; ask it to enrol the site"
        )
    if "could not be activated" in details:
        return ConnectionProblem(
            "the coordinator still holds this site's earlier connection; it lapses soon"
        )
    return None
