"""Checks the connection to the coordinator: name, port, TLS, clock, and admission."""

import socket
from collections.abc import Iterator
from datetime import datetime

import grpc

from erosion_client.connection.credentials import (
    LOGIN,
    Credentials,
    connection_error,
    credentials_for,
    dial,
    proxy_for,
    shake_hands,
    why_not_agreed,
    without_password,
)
from erosion_client.connection.site_link import OURS, Welcome, wrong_clock
from erosion_client.finding import Finding, Severity, failed, failed_by, ok, skipped, warning
from erosion_client.site_file import AppSite
from erosion_common.errors import SiteError
from erosion_common.protocol.frames import REASON
from erosion_common.support import expiry
from erosion_common.support.text import printable

SECONDS = 10.0  # for each step


def check_network(site: AppSite) -> Iterator[Finding]:
    """Check DNS, then the whole connection at once; only if that fails, the port alone."""
    address = site.coordinator.address
    try:
        proxy = proxy_for(address, site.coordinator.proxy)
    except SiteError as problem:
        yield failed_by("DNS", problem)
        return
    yield (found := _look_up(address, proxy))
    if found.outcome is Severity.FAILED:
        return
    try:
        credentials = credentials_for(site.coordinator)
        line = credentials.connect()
    except SiteError as problem:
        yield from _port(address, proxy)
        yield failed_by("certificate", problem)
        return
    answer = line.check(seconds=SECONDS)
    is_rejected = isinstance(answer.problem, grpc.Call) and REASON in dict(
        answer.problem.trailing_metadata() or ()
    )
    if answer.versions is None and not is_rejected:  # the coordinator itself did not answer
        port = list(_port(address, proxy))
        yield from port
        if port[0].outcome is Severity.FAILED:
            return
        yield _tls_or_not(credentials, answer)
    else:
        yield ok("port", f"{_way(address, proxy)} answers")
        yield _tls(credentials, answer)
    if answer.versions is not None or is_rejected or credentials.tls is None:
        yield _clock(answer)
        yield _version(answer)
        yield _certificate(site, credentials, answer)


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


def _port(address: str, proxy: str | None) -> Iterator[Finding]:
    way = _way(address, proxy)
    try:
        dial(address, proxy, SECONDS).close()
    except OSError as problem:
        remedy = f"ask your network people to allow TCP from here to {way}"
        if isinstance(problem, ConnectionRefusedError):
            remedy = "ask whether the coordinator runs, and on which port"
            if proxy:
                remedy = "check the proxy's address and port: coordinator.proxy, or https_proxy"
        if " 407" in str(problem):
            remedy = LOGIN
        yield failed("port", f"{way}: {problem.strerror or problem}", remedy)
    else:
        yield ok("port", f"{way} answers")


def _tls(credentials: Credentials, answer: Welcome) -> Finding:
    if credentials.tls is None:
        return skipped("TLS", "not used")
    text = f"the certificate fits the CA and {credentials.address.rpartition(':')[0].strip('[]')}"
    remedy = "tell the coordinator: erosion enroll renew coordinator"
    return _unless_it_ends_soon("TLS", text, answer.certificate_expires, remedy)


def _unless_it_ends_soon(what: str, text: str, expires: datetime | None, remedy: str) -> Finding:
    if expires is None:
        return ok(what, text)
    text += f", {expiry.in_words(expires)}"
    return warning(what, text, remedy) if expiry.ends_soon(expires) else ok(what, text)


def _tls_or_not(credentials: Credentials, answer: Welcome) -> Finding:
    """Return the finding about what listens there and did not answer as a coordinator."""
    if credentials.tls is None or answer.problem is None:
        return skipped("TLS", "the site file names no root_certificate")
    trouble = connection_error(answer.problem, credentials.address, encrypted=True)
    seen = shake_hands(credentials, SECONDS)
    remedy = why_not_agreed(credentials, seen) or "ask the coordinator, or your network people"
    if seen.certificate is not None:
        issuer = printable(seen.certificate.issuer.rfc4514_string(), at_most=200)
        remedy = f"the certificate that is shown was issued by {issuer}: {remedy}"
    return failed("TLS", trouble.text, remedy)


def _clock(answer: Welcome) -> Finding:
    if answer.ahead is None:
        return skipped("clock", "the coordinator did not say its time")
    ahead, uncertain = answer.ahead.total_seconds(), answer.uncertain.total_seconds()
    side = "ahead of" if ahead > 0 else "behind"
    text = f"{expiry.span(answer.ahead)} {side} the coordinator's (to within {uncertain:.1f} s)"
    if wrong_clock(answer.ahead, answer.uncertain):
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


def _certificate(site: AppSite, credentials: Credentials, answer: Welcome) -> Finding:
    what, is_encrypted = "certificate", credentials.tls is not None
    if answer.problem is not None:
        trouble = connection_error(answer.problem, credentials.address, encrypted=is_encrypted)
        return failed(what, trouble.text, "ask the coordinator, and name your key's fingerprint")
    if answer.hospital is None:
        return ok(what, "the coordinator asks for none")
    if answer.hospital != site.name:
        return failed(
            what,
            f"it was issued to {answer.hospital}, and this site calls itself {site.name}",
            f'write name = "{answer.hospital}" in the site file, or use this site\'s own key',
        )
    text, remedy = f"enrolled for {answer.hospital}", "ask the coordinator to renew it"
    return _unless_it_ends_soon(what, text, answer.expires, remedy)
