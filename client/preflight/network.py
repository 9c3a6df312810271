"""Checks the way to the coordinator: name, port, TLS, clock, and that the key is admitted."""

import socket
import ssl
from collections.abc import Iterator

import grpc

from erosion.client.connection.connection_errors import connection_error
from erosion.client.connection.credentials import credentials_for
from erosion.client.connection.fleet import FleetReply
from erosion.client.finding import Finding, Outcome, failed, ok, skipped, warning
from erosion.client.site_file import Site
from erosion.common.errors import SiteError
from erosion.common.protocol import admission_terms
from erosion.common.protocol.admission_terms import Reason
from erosion.common.support import expiry

SECONDS = 10.0  # for each step
UNEASY_SECONDS = 2.0  # a clock that is further off than this will not stay within the limits
STEPS = ("DNS", "port", "TLS", "clock", "key")
_NO_LINE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def check_network(site: Site) -> Iterator[Finding]:
    """One finding for each of STEPS; those behind one that failed are skipped."""
    done: list[Finding] = []
    for finding in _steps(site):
        done.append(finding)
        yield finding
    broken = next((f.what for f in done if f.outcome is Outcome.FAILED), "the connection")
    for what in STEPS[len(done) :]:
        yield skipped(what, f"not until {broken} is fixed")


def _steps(site: Site) -> Iterator[Finding]:
    """DNS, then the whole way at once; only where that fails, port and TLS by themselves."""
    host, _, port = site.coordinator.address.rpartition(":")
    host = host.strip("[]")
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except OSError as problem:
        yield failed("DNS", f"{host}: {problem.strerror}", "check the name, and this machine's DNS")
        return
    addresses = sorted({str(entry[4][0]) for entry in found})
    yield ok("DNS", f"{host} is {', '.join(addresses)}")
    try:
        line = credentials_for(site.coordinator)
    except SiteError as problem:
        yield from _port_and_tls(site, host, int(port))
        yield skipped("clock", "not until the keys are fixed")
        yield failed("key", "it cannot be used", str(problem))
        return
    answer = line.connect().knock(seconds=SECONDS)
    encrypted = line.root_certificate is not None
    if answer.ahead is None:  # whatever answered is no coordinator of ours
        yield from _port_and_tls(site, host, int(port))
        if isinstance(answer.problem, grpc.Call) and answer.problem.code() in _NO_LINE:
            return
    else:
        yield ok("port", f"{host} port {port} answers")
        yield _agreed(answer, host) if encrypted else skipped("TLS", "not used")
    yield _clock(answer)
    yield _key(site, answer, encrypted=encrypted)


def _agreed(answer: FleetReply, host: str) -> Finding:
    text = f"the certificate fits the CA and {host}"
    if (expires := answer.certificate_expires) is None:
        return ok("TLS", text)
    text += f", {expiry.in_words(expires)}"
    if expiry.ends_soon(expires):
        return warning("TLS", text, "tell the coordinator: erosion enroll renew coordinator")
    return ok("TLS", text)


def _port_and_tls(site: Site, host: str, port: int) -> Iterator[Finding]:
    try:
        connection = socket.create_connection((host, port), timeout=SECONDS)
    except OSError as problem:
        remedy = f"ask your network people to allow TCP from here to {host} port {port}"
        if isinstance(problem, ConnectionRefusedError):
            remedy = "ask whether the coordinator runs, and on which port"
        yield failed("port", f"{host} port {port}: {problem.strerror or problem}", remedy)
        yield skipped("TLS", "not until port is fixed")
        return
    with connection:
        yield ok("port", f"{host} port {port} answers")
        if site.coordinator.root_certificate is None:
            yield skipped("TLS", "the site file names no root_certificate")
        else:
            yield _tls(site, connection, host)


def _tls(site: Site, connection: socket.socket, host: str) -> Finding:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    try:
        context.load_verify_locations(site.coordinator.root_certificate)
        with context.wrap_socket(connection, server_hostname=host) as line:
            return ok("TLS", f"{line.version()}, the certificate fits the CA and {host}")
    except ssl.SSLCertVerificationError as problem:
        return failed("TLS", _verification(problem, host), _remedy(problem))
    except (ssl.SSLError, OSError) as problem:
        reason = getattr(problem, "reason", None) or str(problem)
        return failed(
            "TLS",
            f"no agreement: {reason}",
            "check coordinator.address: what listens there may not use TLS; a proxy that looks"
            " into TLS breaks it too",
        )


def _verification(problem: ssl.SSLCertVerificationError, host: str) -> str:
    return f"the certificate of {host} was not accepted: {problem.verify_message}"


def _remedy(problem: ssl.SSLCertVerificationError) -> str:
    words = problem.verify_message
    if "expired" in words:
        return "check this machine's clock; else the coordinator has to run: erosion enroll renew"
    if "not yet valid" in words:
        return "set this machine's clock by NTP"
    if "mismatch" in words or "not valid for" in words:
        return "dial a name that the certificate is for, or have it renewed with --host"
    return "ask the coordinator for the current ca.crt, and compare its fingerprint by telephone"


def _clock(answer: FleetReply) -> Finding:
    if answer.ahead is None:
        return skipped("clock", "the coordinator did not say its time")
    ahead, uncertain = answer.ahead.total_seconds(), answer.uncertain.total_seconds()
    side = "ahead of" if ahead > 0 else "behind"
    text = f"{abs(ahead):.1f} s {side} the coordinator's (to within {uncertain:.1f} s)"
    remedy = "set this machine's clock by NTP, and ask the coordinator to do the same"
    if (
        not -admission_terms.SECONDS_BEHIND
        < ahead - uncertain
        <= ahead + uncertain
        < admission_terms.SECONDS_AHEAD
    ):
        return failed("clock", text, remedy)
    if abs(ahead) > UNEASY_SECONDS + uncertain:
        return warning("clock", text, remedy)
    return ok("clock", text)


def _key(site: Site, answer: FleetReply, *, encrypted: bool) -> Finding:
    if answer.problem is not None:
        trouble = connection_error(answer.problem, site.coordinator.address, encrypted=encrypted)
        clock = isinstance(answer.problem, grpc.Call) and (
            dict(answer.problem.trailing_metadata() or ()).get(admission_terms.REASON)
            == Reason.CLOCK
        )
        if clock:
            return skipped("key", "not before the clock is right")
        return failed("key", trouble.text, "ask the coordinator, and name your key's fingerprint")
    if answer.hospital is None:
        return ok("key", "the coordinator asks for none")
    if answer.hospital != site.name:
        return failed(
            "key",
            f"it was enrolled for {answer.hospital}, and this site calls itself {site.name}",
            f'write name = "{answer.hospital}" in the site file, or use this site\'s own key',
        )
    text = f"enrolled for {answer.hospital}"
    if answer.expires is None:
        return ok("key", text)
    text += f", {expiry.in_words(answer.expires)}"
    if expiry.ends_soon(answer.expires):
        return warning("key", text, "ask the coordinator to renew it")
    return ok("key", text)
