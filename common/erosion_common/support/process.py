"""This process and its machine: memory, open files, its parent, and the time in which it ran."""

import contextlib
import ctypes
import gc
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -3, -4, -8
_LARGEST_MMAP_THRESHOLD = 32 * 2**20  # glibc accepts no more
_SMALL, _USUAL_MAPPED = 2**18, 2**16
_FEW_ARENAS = 2  # what one thread has freed, another can use


def keep_freed_memory(*, large: bool = False) -> None:
    """For speed. Call once, before torch allocates. Without glibc nothing happens.

    `large`: also large buffers, which would otherwise be mapped and zeroed at each use; a site with
    a model of 11 million parameters then needs the memory of 2 to 4 models more.
    """
    if large:
        _set(_M_MMAP_MAX, 0)
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # torch: large pages for large tensors
    _set(_M_ARENA_MAX, _FEW_ARENAS)
    _set(_M_TRIM_THRESHOLD, 2**31 - 1)
    _set(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)


def return_freed_memory() -> None:
    """Hand back what is freed from now on, also after `keep_freed_memory`."""
    _set(_M_MMAP_MAX, _USUAL_MAPPED)
    _set(_M_TRIM_THRESHOLD, _SMALL)
    _set(_M_MMAP_THRESHOLD, _SMALL)


def _set(parameter: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(parameter, value)


def peak_megabytes(pid: int | None = None) -> float | None:
    """Return the largest resident set of a process so far (None: of this one); None if unknown."""
    try:
        status = Path(f"/proc/{pid or 'self'}/status").read_text()
        lines = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        return int(lines["VmHWM"].split()[0]) / 1024
    except (OSError, KeyError, ValueError):
        return None if pid else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def memory_bytes() -> int:
    """Return the bytes for this process: the machine's memory, or a lower container limit."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
    except (OSError, ValueError):  # no container, or "max"
        return machine
    return min(machine, limit)


ENOUGH = 2**20


def raise_limit() -> int:
    """Raise the limit as far as this account may; returns what it is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(ENOUGH, hard) if hard != resource.RLIM_INFINITY else ENOUGH
    if soft == resource.RLIM_INFINITY:
        return ENOUGH
    with contextlib.suppress(ValueError, OSError):
        if soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return wanted
    return soft


def end_with_stdin() -> None:
    """Interrupt this process once standard input closes: a killed supervisor's pipe does."""

    def watch() -> None:
        # Not sys.stdin: at exit Python would wait for the lock that its pending read holds.
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


@contextlib.contextmanager
def imports_for_good() -> Iterator[None]:
    """Pause garbage collection while importing: it takes a fifth of a program's start."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


TICK_SECONDS = 1.0  # how often somebody looks at the clock, at least
GAP_SECONDS = 6.0  # between two looks; a program that ran would have looked


class RunningTime:
    """A clock for deadlines. The first reading after a gap takes the gap out for all."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic, self._lock = monotonic, threading.Lock()
        self._seen, self._stopped = monotonic(), 0.0

    def now(self) -> float:
        """Return seconds since some moment. Call it every TICK_SECONDS at least."""
        with self._lock:
            seen = self._monotonic()
            if (gap := seen - self._seen) >= GAP_SECONDS:
                self._stopped += gap - TICK_SECONDS
            self._seen = seen
            return seen - self._stopped
