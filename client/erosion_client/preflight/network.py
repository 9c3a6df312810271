"""Checks the connection to the coordinator: name, port, TLS, clock, and admission."""

import contextlib
import socket
import ssl
from collections.abc import Iterator

import grpc
from cryptography import x509

from erosion_client.connection.credentials import (
    connection_error,
    credentials_for,
    dial,
    proxy_for,
    without_password,
)
from erosion_client.connection.site_link import OURS, Welcome
from erosion_client.finding import Finding, Severity, failed, ok, skipped, warning
from erosion_client.site_file import AppSite, Site
from erosion_common.errors import SiteError
from erosion_common.protocol.frames import REASON
from erosion_common.support import expiry
from erosion_common.support.text import printable

SECONDS = 10.0  # for each step
UNEASY_SECONDS = 60.0  # a clock that is further off makes certificates and logs doubtful
STEPS = ("DNS", "port", "TLS", "clock", "version", "certificate")


def check_network(site: Site | AppSite) -> Iterator[Finding]:
    """Yield one finding for each of STEPS; those after one that failed are skipped."""
    done: list[Finding] = []
    for finding in _steps(site):
        done.append(finding)
        yield finding
    broken = next((f.what for f in done if f.outcome is Severity.FAILED), "the connection")
    for what in STEPS[len(done) :]:
        yield skipped(what, f"not until {broken} is fixed")


def _steps(site: Site | AppSite) -> Iterator[Finding]:
    """Check DNS, then the whole connection at once; only if that fails, port and TLS separately."""
    address = site.coordinator.address
    try:
        proxy = proxy_for(address, site.coordinator.proxy)
    except SiteError as problem:
        text, _, remedy = str(problem).partition(". ")
        yield failed("DNS", text, remedy)
        return
    found = _look_up(address, proxy)
    yield found
    if found.outcome is Severity.FAILED:
        return
    try:
        line = credentials_for(site.coordinator)
    except SiteError as problem:
        yield from _port_and_tls(site, address, proxy)
        yield skipped("clock", "not until the keys are fixed")
        yield skipped("version", "not until the keys are fixed")
        yield failed("certificate", "it cannot be used", str(problem))
        return
    answer = line.connect().check(seconds=SECONDS)
    encrypted = line.tls is not None
    host = address.rpartition(":")[0].strip("[]")
    refusal = _refusal(answer)
    if answer.versions is None and refusal is None:  # another protocol answers
        port_and_tls = list(_port_and_tls(site, address, proxy))
        yield from port_and_tls
        if any(finding.outcome is Severity.FAILED for finding in port_and_tls):
            return
        yield skipped("clock", "the coordinator did not say its time")
        yield skipped("version", "the coordinator did not say its version")
        yield _certificate(site, answer, encrypted=encrypted)
        return
    yield ok("port", f"{_way(address, proxy)} answers")
    yield _agreed(answer, host) if encrypted else skipped("TLS", "not used")
    yield _clock(answer)
    yield _version(answer)
    yield _certificate(site, answer, encrypted=encrypted)


def _look_up(address: str, proxy: str | None) -> Finding:
    """Look a name up; the coordinator's only where no proxy does that."""
    host, _, port = (without_password(proxy) if proxy else address).rpartition(":")
    host = host.strip("[]")
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except OSError as problem:
        return failed(
            "DNS", f"{host}: {problem.strerror}", "check the name, and this machine's DNS"
        )
    addresses = ", ".join(sorted({str(entry[4][0]) for entry in found}))
    return ok("DNS", f"the proxy {host} is {addresses}" if proxy else f"{host} is {addresses}")


def _way(address: str, proxy: str | None) -> str:
    host, _, port = address.rpartition(":")
    by = f" by the proxy {without_password(proxy)}" if proxy else ""
    return f"{host.strip('[]')} port {port}{by}"


def _refusal(answer: Welcome) -> str | None:
    """Return the Reason with which the coordinator itself rejects this site."""
    if not isinstance(answer.problem, grpc.Call):
        return None
    return dict(answer.problem.trailing_metadata() or ()).get(REASON)


def _agreed(answer: Welcome, host: str) -> Finding:
    text = f"the certificate fits the CA and {host}"
    if (expires := answer.certificate_expires) is None:
        return ok("TLS", text)
    text += f", {expiry.in_words(expires)}"
    if expiry.ends_soon(expires):
        return warning("TLS", text, "tell the coordinator: erosion enroll renew coordinator")
    return ok("TLS", text)


def _port_and_tls(site: Site | AppSite, address: str, proxy: str | None) -> Iterator[Finding]:
    host = address.rpartition(":")[0].strip("[]")
    way = _way(address, proxy)
    try:
        connection = dial(address, proxy, SECONDS)
    except OSError as problem:
        remedy = f"ask your network people to allow TCP from here to {way}"
        if isinstance(problem, ConnectionRefusedError):
            remedy = "ask whether the coordinator runs, and on which port"
        yield failed("port", f"{way}: {problem.strerror or problem}", remedy)
        yield skipped("TLS", "not until port is fixed")
        return
    with connection:
        yield ok("port", f"{way} answers")
        if site.coordinator.root_certificate is None:
            yield skipped("TLS", "the site file names no root_certificate")
        else:
            yield _tls(site, connection, host)


def _tls(site: Site | AppSite, connection: socket.socket, host: str) -> Finding:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    coordinator = site.coordinator
    try:
        context.load_verify_locations(coordinator.root_certificate)
        if coordinator.certificate is not None:
            with contextlib.suppress(OSError):  # the keys have a separate finding
                context.load_cert_chain(coordinator.certificate, coordinator.private_key)
        with context.wrap_socket(connection, server_hostname=host) as line:
            version = line.version()
            line.settimeout(SECONDS)
            if not line.recv(1):  # gRPC begins; or it ends at once, as TLS 1.3 reports it
                raise ssl.SSLError(0, "CERTIFICATE_REFUSED")
            return ok("TLS", f"{version}, the certificate fits the CA and {host}")
    except ssl.SSLCertVerificationError as problem:
        issuer = _issuer(site, host)
        return failed("TLS", _verification(problem, host, issuer), _remedy(problem, host, issuer))
    except TimeoutError as problem:
        return failed(
            "TLS",
            f"no agreement within {SECONDS:.0f} s: {problem}",
            "a firewall that looks into TLS may hold it back; ask your network people",
        )
    except (ssl.SSLError, OSError) as problem:
        reason = getattr(problem, "reason", None) or str(problem)
        if any(sign in reason for sign in _OURS_REFUSED):
            return failed(
                "TLS",
                f"the coordinator did not accept this site's certificate: {reason}",
                "ask the coordinator for a new kit: erosion enroll install KIT SITE.toml",
            )
        return failed(
            "TLS",
            f"no agreement: {reason}",
            "check coordinator.address: what listens there may not use TLS; a proxy that looks"
            " into TLS breaks it too",
        )


# What the coordinator's TLS says about a rejected or missing certificate.
_OURS_REFUSED = ("UNKNOWN_CA", "CERTIFICATE", "Connection reset")


def _issuer(site: Site | AppSite, host: str) -> str:
    """Return who issued the certificate that is shown; "" where that is unknown."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # it is only inspected
    address = site.coordinator.address
    try:
        connection = dial(address, proxy_for(address, site.coordinator.proxy), SECONDS)
        with connection, context.wrap_socket(connection, server_hostname=host) as line:
            shown = line.getpeercert(binary_form=True)
        issuer = x509.load_der_x509_certificate(shown or b"").issuer
        return printable(issuer.rfc4514_string(), at_most=200)
    except (OSError, ValueError, SiteError):
        return ""


def _verification(problem: ssl.SSLCertVerificationError, host: str, issuer: str) -> str:
    by = f", issued by {issuer}," if issuer else ""
    return f"the certificate shown for {host}{by} was not accepted: {problem.verify_message}"


def _remedy(problem: ssl.SSLCertVerificationError, host: str, issuer: str) -> str:
    words = problem.verify_message
    if "expired" in words:
        return "check this machine's clock; else the coordinator has to run: erosion enroll renew"
    if "not yet valid" in words:
        return "set this machine's clock by NTP"
    if "mismatch" in words or "not valid for" in words:
        return "dial a name that the certificate is for, or have it renewed with --host"
    return (
        f"if {issuer or 'its issuer'} belongs to your own network, a firewall opens TLS, which is"
        f" the usual reason: have it let {host} pass unopened. Else ask the coordinator for the"
        " current ca.crt, and compare its fingerprint by telephone"
    )


def _clock(answer: Welcome) -> Finding:
    if answer.ahead is None:
        return skipped("clock", "the coordinator did not say its time")
    ahead, uncertain = answer.ahead.total_seconds(), answer.uncertain.total_seconds()
    side = "ahead of" if ahead > 0 else "behind"
    text = f"{abs(ahead):.1f} s {side} the coordinator's (to within {uncertain:.1f} s)"
    if abs(ahead) > UNEASY_SECONDS + uncertain:
        remedy = "set this machine's clock by NTP, and ask the coordinator to do the same"
        return warning("clock", text, remedy)
    return ok("clock", text)


def _version(answer: Welcome) -> Finding:
    theirs = answer.versions
    if theirs is None:
        return skipped("version", "the coordinator did not say its version")
    if theirs.software != OURS.software:
        return warning(
            "version",
            f"here {OURS.words}, at the coordinator {theirs.words}",
            "they understand each other; install the same version when you can",
        )
    return ok("version", f"{OURS.words} on both sides")


def _certificate(site: Site | AppSite, answer: Welcome, *, encrypted: bool) -> Finding:
    what = "certificate"
    if answer.problem is not None:
        trouble = connection_error(answer.problem, site.coordinator.address, encrypted=encrypted)
        return failed(what, trouble.text, "ask the coordinator, and name your key's fingerprint")
    if answer.hospital is None:
        return ok(what, "the coordinator asks for none")
    if answer.hospital != site.name:
        return failed(
            what,
            f"it was issued to {answer.hospital}, and this site calls itself {site.name}",
            f'write name = "{answer.hospital}" in the site file, or use this site\'s own key',
        )
    text = f"enrolled for {answer.hospital}"
    if answer.expires is None:
        return ok(what, text)
    text += f", {expiry.in_words(answer.expires)}"
    if expiry.ends_soon(answer.expires):
        return warning(what, text, "ask the coordinator to renew it")
    return ok(what, text)
