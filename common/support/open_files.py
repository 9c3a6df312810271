"""Raises the number of files and connections that this process may have open."""

import resource

ENOUGH = 2**20


def raise_limit() -> int:
    """Raise the limit as far as this account may; returns what it is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(ENOUGH, hard) if hard != resource.RLIM_INFINITY else ENOUGH
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return ENOUGH if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (ValueError, OSError):
        return soft
    return wanted
