"""The coordinator's clock and its reasons for a refusal, in gRPC's terms."""

from datetime import datetime
from typing import Any, NoReturn

import grpc

from erosion.common.protocol import admission_terms
from erosion.common.protocol.admission_terms import Reason
from erosion.common.support import expiry
from erosion.server.enrolment.authorizer import Admitted
from erosion.server.enrolment.rejections import clock_trouble


def say(
    context: grpc.ServicerContext,
    verdict: Admitted | None = None,
    *,
    certificate_expires: datetime | None = None,
) -> None:
    """Tell the caller our time, as whom we know it, and until when it can trust us."""
    words = [(admission_terms.TIME, _time())]
    if certificate_expires is not None:
        words.append((admission_terms.CERTIFICATE, certificate_expires.isoformat()))
    if verdict is not None:
        words += [
            (admission_terms.HOSPITAL, verdict.hospital),
            (admission_terms.EXPIRES, verdict.expires.isoformat()),
        ]
    context.set_trailing_metadata(words)


def refuse(
    context: grpc.ServicerContext, reason: Reason, text: str, hospital: str | None = None
) -> NoReturn:
    """End the call."""
    words = [(admission_terms.TIME, _time()), (admission_terms.REASON, reason.value)]
    context.set_trailing_metadata(
        words + ([(admission_terms.HOSPITAL, hospital)] if hospital else [])
    )
    context.abort(grpc.StatusCode.UNAUTHENTICATED, text)
    raise AssertionError("abort raises")


def refusal(reason: Reason, text: str, hospital: str | None = None) -> grpc.RpcMethodHandler:
    """A handler that answers nothing but this."""

    def answer(_request: Any, context: grpc.ServicerContext) -> NoReturn:
        refuse(context, reason, text, hospital)

    return grpc.unary_unary_rpc_method_handler(answer)


def refused_for(context: grpc.ServicerContext) -> Reason | None:
    """Why a call that was ended had to be; None where nobody is kept out by it."""
    said = dict(context.trailing_metadata() or ())
    if admission_terms.REASON in said:
        return Reason(said[admission_terms.REASON])
    details = _details(context)
    if details == "Invalid timestamp":
        return Reason.CLOCK
    if details in ("Invalid signature", "Missing authentication metadata"):
        return Reason.SIGNATURE
    return Reason.IN_USE if "could not be activated" in details else None


def put_into_words(context: grpc.ServicerContext, reason: Reason, site_time: str) -> str:
    """Replace Flower's own words by ours, which say what to do; returns what is said now."""
    said = dict(context.trailing_metadata() or ())
    if admission_terms.REASON not in said:
        context.set_trailing_metadata((*said.items(), (admission_terms.REASON, reason.value)))
        context.set_details(_words(reason, site_time))
    return _details(context)


def hospital_in(context: grpc.ServicerContext) -> str | None:
    """As whom the caller was known, if it was."""
    return dict(context.trailing_metadata() or ()).get(admission_terms.HOSPITAL)


def _details(context: grpc.ServicerContext) -> str:
    details = context.details() or ""  # what it was set to: text or bytes
    return details.decode() if isinstance(details, bytes) else str(details)


def _words(reason: Reason, site_time: str) -> str:
    if reason is Reason.CLOCK:
        return clock_trouble(site_time)
    if reason is Reason.IN_USE:
        return (
            "its key is in use by another connection: the site runs twice, or it stopped so"
            " abruptly that its earlier connection has yet to lapse (half a minute at most)"
        )
    return "its call is not signed, or not by its key"


def _time() -> str:
    return expiry.precise_now().isoformat()
