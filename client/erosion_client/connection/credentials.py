"""How a site reaches its coordinator: address, proxy, certificates, and what failures mean."""

import base64
import hashlib
import ipaddress
import os
import re
import socket
import ssl
import time
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from erosion_client.connection.site_link import SiteLink, Tls, time_in, wrong_clock
from erosion_client.site_file import CoordinatorAddress
from erosion_common.errors import SiteError
from erosion_common.protocol.frames import REASON, TIME, Reason
from erosion_common.support import expiry
from erosion_common.support.files import read_named, version_of
from erosion_common.support.keys import (
    certificate_in,
    certified_key,
    is_issued_by,
    load_private_key,
    private_pem,
    public_pem,
)
from erosion_common.support.network import checked_address, is_loopback
from erosion_common.support.text import printable

_VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy", "all_proxy")
_EXCEPTIONS = ("no_grpc_proxy", "no_proxy")
_HEAD_BYTES = 2**14  # of the proxy's answer
_MOST_EXCEPTIONS = 2**16  # characters of no_proxy

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def proxy_for(address: str, configured: str | None) -> str | None:
    """Return the proxy for `address` ("host:port"); None: connect directly.

    `configured`: the site file's proxy; None where it has no such key, "" for no proxy.

    Raises SiteError where the environment's proxy is not "host:port".
    """
    if configured is not None:
        return _plain(configured) or None
    if is_loopback(address):
        return None
    name, said = _in_environment(_VARIABLES)
    if not said or _is_excepted(address):
        return None
    proxy = _plain(said)
    try:
        if re.match(r"(?i)socks", said):
            raise ValueError("a SOCKS proxy is not supported; name one for HTTP")
        checked_address(without_password(proxy))
    except ValueError as mistake:
        raise SiteError(
            f"The environment variable {name} names the proxy {without_password(proxy)!r}:"
            f" {mistake}",
            remedy="Write it like http://proxy.example.org:3128, or name the proxy in the site"
            " file (coordinator.proxy).",
        ) from None
    return proxy


def _in_environment(names: Sequence[str]) -> tuple[str, str]:
    """Return the first of the variables that is set, in any case, and its value; "" for none."""
    given = {name.lower(): name for name in sorted(os.environ) if os.environ[name].strip()}
    found = next((given[name] for name in names if name in given), "")
    return found, os.environ.get(found, "").strip()


def without_password(proxy: str) -> str:
    """Return a proxy's address without its password, for messages."""
    return proxy.rpartition("@")[2]


def dial(address: str, proxy: str | None, seconds: float) -> socket.socket:
    """Open a TCP connection to `address`, through the proxy if there is one. Raises OSError."""
    host, _, port = address.rpartition(":")
    if proxy is None:
        return socket.create_connection((host.strip("[]"), int(port)), timeout=seconds)
    credentials, _, gate = proxy.rpartition("@")
    gate_host, _, gate_port = gate.rpartition(":")
    line = socket.create_connection((gate_host.strip("[]"), int(gate_port)), timeout=seconds)
    try:
        request = f"CONNECT {address} HTTP/1.1\r\nHost: {address}\r\n"
        if credentials:
            token = base64.b64encode(unquote(credentials).encode()).decode()
            request += f"Proxy-Authorization: Basic {token}\r\n"
        line.sendall(f"{request}\r\n".encode())
        answer, end = b"", time.monotonic() + seconds
        while not answer.endswith(b"\r\n\r\n") and len(answer) < _HEAD_BYTES:
            if time.monotonic() > end:
                raise TimeoutError(0, f"the proxy {gate} has not answered in time")
            if not (more := line.recv(1)):  # one byte at a time: what follows is the coordinator's
                break
            answer += more
        status = answer.partition(b"\r\n")[0].decode(errors="replace")
        if not re.match(r"HTTP/1\.[01] 2\d\d\b", status):
            raise OSError(0, f"the proxy {gate} answered {status[:200]!r}")
    except BaseException:  # nobody else has the socket yet
        line.close()
        raise
    return line


def _plain(proxy: str) -> str:
    return re.sub(r"^\w+://", "", proxy).rstrip("/")


def _is_excepted(address: str) -> bool:
    """Return whether no_proxy names the address, read as curl and Go do.

    An entry is a host's name (its sub-domains included), an IP address or a network such as
    10.0.0.0/8, each with or without a port. A "*" stands for anything, as in 10.*.
    """
    host, _, port = address.lower().rpartition(":")
    host = host.strip("[]").rstrip(".")
    _, said = _in_environment(_EXCEPTIONS)
    for entry in filter(None, re.split(r"[,;\s]+", said.lower()[:_MOST_EXCEPTIONS])):
        name = _plain(entry)
        if _network(name) is None:
            name = name.removesuffix(f":{port}")
        if (network := _network(name)) is not None:
            with suppress(ValueError):  # a name may be in that network; only the DNS knows
                if ipaddress.ip_address(host) in network:
                    return True
        elif (bare := name.removeprefix("*.").strip(".")) and (
            fnmatchcase(host, bare) or host.endswith(f".{bare}")
        ):
            return True
    return False


def _network(entry: str) -> _Network | None:
    try:
        bare = entry.removeprefix("[").removesuffix("]").replace("]/", "/")
        return ipaddress.ip_network(bare, strict=False)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Credentials:
    """How to reach the coordinator, checked, so that a damaged file shows at the start."""

    address: str
    tls: Tls | None = None  # None: the connection is not encrypted
    proxy: str | None = field(default=None, repr=False)  # may hold a password
    files: tuple[Path, Path] | None = None  # from which certificate and key were read
    version: tuple[int, ...] = ()  # of the certificate's file

    @property
    def expires(self) -> datetime | None:
        """When its certificate ends, or the authority's before that; None: it has none."""
        if self.tls is None:
            return None
        both = (self.tls.certificate, self.tls.root)
        return min(certificate_in(pem).not_valid_after_utc for pem in both)

    def connect(self) -> SiteLink:
        """Return a connection that is not open yet. Raises SiteError once the keys have expired."""
        if self.files is not None and self.expires and expiry.has_ended(self.expires):
            raise SiteError(
                f"This site's certificate {self.files[0]} {expiry.in_words(self.expires)}, and it"
                f" is {expiry.now():%Y-%m-%d} by this machine's clock. Where the clock is wrong,"
                " set it by NTP; else ask the coordinator for a new kit (erosion enroll renew"
                " NAME), then: erosion enroll install KIT SITE.toml"
            )
        return SiteLink(self.address, tls=self.tls, proxy=self.proxy, look_into=self.look_into)

    def is_renewed(self) -> bool:
        """Return whether another certificate was installed since."""
        return self.files is not None and version_of(self.files[0]) not in ((), self.version)

    def look_into(self) -> str:
        """Return why the TLS handshake failed, as far as a second one shows it; else ""."""
        return why_not_agreed(self, shake_hands(self, LOOK_INTO_SECONDS))


def credentials_for(coordinator: CoordinatorAddress) -> Credentials:
    """Read the keys that the site file names. Raises SiteError."""
    address = coordinator.address
    proxy = proxy_for(address, coordinator.proxy)
    files = coordinator.root_certificate, coordinator.certificate, coordinator.private_key
    root_file, certificate_file, key_file = files
    if root_file is None or certificate_file is None or key_file is None:
        if not is_loopback(address):
            raise SiteError(
                f"coordinator.address = {address!r}; without coordinator.root_certificate,"
                " coordinator.certificate and coordinator.private_key the connection is neither"
                " encrypted nor authenticated, which is allowed on this machine only (127.0.0.1)."
                " All come in the site kit."
            )
        return Credentials(address, proxy=proxy)
    version = version_of(certificate_file)  # before reading: what changes meanwhile is newer
    _, root = _read("coordinator.root_certificate", root_file, alone=True)
    pem, certificate = _read("coordinator.certificate", certificate_file)
    key = load_private_key(key_file, SiteError)
    public = certified_key(certificate)
    if public is None or public_pem(public) != public_pem(key.public_key()):
        raise SiteError(
            f"coordinator.certificate: {certificate_file} is not for the key {key_file}",
            remedy="Take both from the same site kit: erosion enroll install KIT SITE.toml, with"
            " --key FILE where this site made the key itself",
        )
    # The site's records know the coordinator by these bytes, so white space must not matter.
    trusted = root.public_bytes(serialization.Encoding.PEM)
    tls = Tls(trusted, pem, private_pem(key))
    return Credentials(address, tls, proxy, (certificate_file, key_file), version)


LOOK_INTO_SECONDS = 10.0


class Handshake(NamedTuple):
    """What Python's TLS saw of the other side, which gRPC does not say."""

    certificate: x509.Certificate | None = None  # that it showed; not verified
    was_ended: bool = False  # as soon as it had seen this site's certificate


def shake_hands(credentials: Credentials, seconds: float) -> Handshake:
    """Open a TLS connection and close it again; nothing is sent, and the peer is not verified."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    certificate = None
    try:
        if credentials.files is not None:
            context.load_cert_chain(*credentials.files, password="")
        line = dial(credentials.address, credentials.proxy, seconds)
        with line, context.wrap_socket(line) as encrypted:
            shown = encrypted.getpeercert(binary_form=True)
            certificate = x509.load_der_x509_certificate(shown or b"")
            return Handshake(certificate, was_ended=not encrypted.recv(1))
    except (OSError, ValueError):
        return Handshake(certificate)


def why_not_agreed(credentials: Credentials, seen: Handshake) -> str:
    """Return which clock is wrong and by how much, or that the authorities differ; else ""."""
    if credentials.tls is None or credentials.files is None or seen.certificate is None:
        return ""
    root, own = certificate_in(credentials.tls.root), certificate_in(credentials.tls.certificate)
    now, shown = expiry.now(), seen.certificate
    here = f"and it is {now:%Y-%m-%d %H:%M} UTC by this machine's clock"
    for what, each in (("the certificate shown", shown), ("this site's certificate", own)):
        begins, ends = each.not_valid_before_utc, each.not_valid_after_utc
        if not begins <= now < ends:
            off = f"{expiry.span(now - ends)} too late"
            if now < begins:
                off = f"{expiry.span(begins - now)} too early"
            return (
                f"{what} is valid from {begins:%Y-%m-%d} to {ends:%Y-%m-%d}, {here}, {off}:"
                " set the clock by NTP, or have the certificate renewed"
            )
    if not (seen.was_ended and is_issued_by(shown, root)):
        return ""
    if not is_issued_by(own, root):
        return (
            "this site's certificate is of another authority than the coordinator's: ask for a kit"
            " of this federation"
        )
    # Of the same authority, and refused: only the time can be the reason.
    ahead = expiry.span(own.not_valid_after_utc - now)
    behind = expiry.span(now - own.not_valid_before_utc)
    return (
        f"this site's certificate is valid, {here}, but not by the coordinator's: that clock is at"
        f" least {ahead} ahead of this one, or at least {behind} behind; set the one that is wrong"
        " by NTP"
    )


def known_as(credentials: Credentials) -> str:
    """Return the coordinator's key in the site's records: the authority, or else the address."""
    if credentials.tls is None:
        return credentials.address
    return hashlib.sha256(credentials.tls.root).hexdigest()[:16]


def _read(what: str, path: Path, *, alone: bool = False) -> tuple[bytes, x509.Certificate]:
    try:
        pem = read_named(path)
        return pem, certificate_in(pem, alone=alone)
    except (OSError, ValueError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else problem
        raise SiteError(
            f"{path}: {reason}", where=what, remedy=f"Take {path.name} from the site kit again."
        ) from None


@dataclass(frozen=True, slots=True)
class ConnectionProblem:
    """Why a call failed."""

    text: str
    is_final: bool = False  # useless to retry before a person has acted
    is_tls: bool = False  # a look at the handshake may say more


LOGIN = (
    'write proxy = "user:password@HOST:PORT" under [coordinator]; of the ways to log in only Basic'
    " is supported"
)
# gRPC's texts, in the order in which to look for them -> what they mean.
_FAILURES = tomllib.loads(Path(__file__).with_name("failures.toml").read_text())["failures"]


def connection_error(problem: grpc.RpcError, address: str, *, encrypted: bool) -> ConnectionProblem:
    """Explain a failed call to `address`."""
    if not isinstance(problem, grpc.Call):
        return ConnectionProblem(f"the coordinator at {address} is lost: {problem}")
    details, code = printable(problem.details() or "", at_most=1000), problem.code()
    said = dict(problem.trailing_metadata() or ()).get(REASON)
    if said is not None:
        final = said in set(Reason) and Reason(said).is_final
        theirs = time_in(dict(problem.trailing_metadata()), TIME)
        if theirs is not None and (clock := wrong_clock(expiry.precise_now() - theirs)):
            details += f" ({clock})"
        return ConnectionProblem(
            f"the coordinator at {address} did not let this site in: {details}", final
        )
    if code == grpc.StatusCode.UNAVAILABLE:
        for known in _FAILURES:
            meaning = known["meaning"].format(address=address, login=LOGIN)
            if known["sign"] in details and (encrypted or "certificate" not in known["meaning"]):
                return ConnectionProblem(meaning, is_tls=known.get("tls", False))
        return ConnectionProblem(
            f"the coordinator at {address} cannot be reached"
            + ("" if encrypted else ", or expects TLS (coordinator.root_certificate is not set)")
        )
    if code in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED):
        return ConnectionProblem(f"the coordinator at {address} does not answer in time")
    return ConnectionProblem(f"the coordinator at {address} answered {code.name}: {details}")
