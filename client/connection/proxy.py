"""The HTTP proxy on the way to the coordinator, by the site file or by the environment."""

import base64
import ipaddress
import os
import re
import socket
import time
from urllib.parse import quote, unquote

from erosion.common.errors import SiteError
from erosion.common.support.network import is_loopback, is_name

_VARIABLES = ("grpc_proxy", "https_proxy", "HTTPS_PROXY", "http_proxy")
_EXCEPTIONS = ("no_grpc_proxy", "no_proxy", "NO_PROXY")
_HEAD_BYTES = 2**14  # of the proxy's answer
_MOST_EXCEPTIONS = 2**16  # characters of no_proxy

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def proxy_for(address: str, configured: str | None) -> str | None:
    """The proxy by which to dial `address` ("host:port"); None: straight.

    `configured`: what the site file says; None where it says nothing, "" where it says none.

    Raises SiteError where the environment's proxy is not "host:port".
    """
    if configured is not None:
        return _plain(configured) or None
    if is_loopback(address):
        return None
    name = next((name for name in _VARIABLES if os.environ.get(name)), None)
    if name is None or _is_excepted(address):
        return None
    proxy = _plain(os.environ[name])
    place = without_password(proxy)
    well_formed = re.fullmatch(r"[^\s:/]+:[0-9]{1,5}|\[[0-9a-fA-F:.]+\]:[0-9]{1,5}", place)
    if not well_formed or not is_name(place.rpartition(":")[0]):
        raise SiteError(
            f"The environment variable {name} names the proxy {place!r}, without"
            " a host and a port. Write it like http://proxy.example.org:3128, or name the proxy"
            " in the site file (coordinator.proxy)."
        )
    return proxy


def without_password(proxy: str) -> str:
    """A proxy's address, for people."""
    return proxy.rpartition("@")[2]


def as_url(proxy: str) -> str:
    """As gRPC reads it: what would end a URL's host in a password is percent-encoded."""
    credentials, at, gate = proxy.rpartition("@")
    return f"http://{quote(credentials, safe=':%')}{at}{gate}"


def dial(address: str, proxy: str | None, seconds: float) -> socket.socket:
    """A TCP connection to `address`, through the proxy if there is one. Raises OSError.

    `seconds`: for each of the connection, and the proxy's answer.
    """
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
            if not (more := line.recv(1)):  # one at a time: what follows is the coordinator's
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
    """Whether no_proxy names the address: as curl and Go read it.

    An entry is "*", a host's name (its sub-domains included), an IP address or a network such as
    10.0.0.0/8; all but networks may have a port.
    """
    host, _, port = address.lower().rpartition(":")
    host = host.strip("[]").rstrip(".")
    said = next((os.environ[name] for name in _EXCEPTIONS if os.environ.get(name)), "")
    entries = re.split(r"[,\s]+", said.lower()[:_MOST_EXCEPTIONS])
    return any(entry == "*" or _names(entry, host, port) for entry in entries if entry)


def _names(entry: str, host: str, port: str) -> bool:
    if _network(entry) is None:
        name, colon, wanted = entry.rpartition(":")
        if colon and name and wanted.isdecimal():
            if wanted != port:
                return False
            entry = name
    if (network := _network(entry)) is not None:
        try:
            return ipaddress.ip_address(host) in network
        except ValueError:  # a name, which may be of that network; only the DNS knows
            return False
    entry = entry.lstrip("*").strip(".")
    return bool(entry) and (host == entry or host.endswith(f".{entry}"))


def _network(entry: str) -> _Network | None:
    try:
        return ipaddress.ip_network(entry.strip("[]"), strict=False)
    except ValueError:
        return None
