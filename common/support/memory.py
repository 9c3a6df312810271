"""A process's peak memory, and the machine's memory."""

import os
import resource
from pathlib import Path


def peak_megabytes(pid: int | None = None) -> float | None:
    """The largest resident set so far of a process (None: this one); None where it is not known.

    Linux's own high-water mark is preferred: `ru_maxrss` starts from the parent's peak.
    """
    try:
        status = Path(f"/proc/{pid or 'self'}/status").read_text()
        lines = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        return int(lines["VmHWM"].split()[0]) / 1024
    except (OSError, KeyError, ValueError):
        return None if pid else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def memory_bytes() -> int:
    """Bytes that this process may use: the machine's memory, or its container's limit if lower."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
    except (OSError, ValueError):  # no container, or "max"
        return machine
    return min(machine, limit)
