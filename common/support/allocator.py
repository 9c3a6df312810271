"""Keeps freed memory for the next round or returns it to the kernel: speed or space.

A round of a large model frees and takes hundreds of megabytes. By default glibc returns them, and
the kernel zeroes every page anew: a fifth of a round's time at 11 million parameters. Kept, they
add up over the threads, each of which has taken large buffers at some time.
"""

import contextlib
import ctypes
import os

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_LARGEST_MMAP_THRESHOLD = 32 * 2**20  # glibc accepts no more
_SMALL = 2**18
_FEW_ARENAS = 2  # what one thread has freed, another can use


def keep_freed_memory() -> None:
    """For speed. Call once, before torch allocates. Without glibc nothing happens."""
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # torch: large pages for large tensors
    _set(_M_ARENA_MAX, _FEW_ARENAS)
    _set(_M_TRIM_THRESHOLD, 2**31 - 1)
    _set(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)


def return_freed_memory() -> None:
    """For space: hand back what is freed from now on, whatever `keep_freed_memory` said."""
    _set(_M_TRIM_THRESHOLD, _SMALL)
    _set(_M_MMAP_THRESHOLD, _SMALL)


def _set(parameter: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(parameter, value)
