"""Addresses."""

import ipaddress


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
