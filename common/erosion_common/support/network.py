"""Addresses, and ports of this machine that are free."""

import ipaddress
import random
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


def is_name(host: str) -> bool:
    """Return whether a host's name or address can be looked up at all."""
    try:
        host.encode("idna")  # as the socket module does
    except UnicodeError:
        return False
    return True


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
