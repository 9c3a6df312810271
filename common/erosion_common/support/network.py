"""Addresses, and ports of this machine that are free."""

import ipaddress
import random
import re
import socket


def is_loopback(address: str) -> bool:
    """Return whether "host:port" stays on this machine."""
    host = address.rpartition(":")[0].strip("[]").lower().rstrip(".")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def checked_address(value: str, *, least_port: int = 1) -> str:
    """Return "host:port", an IPv6 address as certificates have it. Raises ValueError."""
    host, _, port = value.rpartition(":")
    decimal = port.isascii() and port.isdecimal()
    if not re.fullmatch(r"[^\s:/]+|\[[0-9a-fA-F:.]+\]", host) or not decimal:
        raise ValueError(
            'write it as "host:port", for example "erosion.example.org:9092" or "[fd00::1]:9092"'
        )
    if not least_port <= int(port) <= 65535:
        raise ValueError(f"the port must be from {least_port} to 65535")
    if host.startswith("["):  # gRPC compares an address with a certificate's letter by letter
        return f"[{ipaddress.IPv6Address(host[1:-1])}]:{port}"
    try:
        host.encode("idna")  # as the socket module does
    except UnicodeError:
        message = "between its dots a host's name has 1 to 63 characters that DNS knows"
        raise ValueError(message) from None
    return value


LOOPBACK = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that nobody listens on.

    They lie below the range from which the kernel takes ports for outgoing connections, so that
    none is taken between this call and its use.
    """
    candidates = random.SystemRandom().sample(range(20_000, 32_000), 2_000)
    found: list[int] = []
    for port in candidates:
        if len(found) == count:
            break
        with socket.socket() as probe:
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
            found.append(port)
    return found


def free_address() -> str:
    """Return an address of the loopback interface at which nobody listens: "host:port"."""
    (port,) = free_ports(1)
    return f"{LOOPBACK}:{port}"
