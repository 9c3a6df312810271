"""Keeping freed memory for the next round, instead of handing it back to the kernel every time.

A round of a large model frees and takes hundreds of megabytes. By default glibc returns them, and
the kernel zeroes every page anew: a fifth of a round's time at 11 million parameters.
"""

import ctypes
import os

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_MMAP_THRESHOLD = 32 * 2**20  # glibc accepts no more


def keep_freed_memory() -> None:
    """Call once, before torch allocates. Does nothing where the C library is not glibc."""
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # torch: large pages for large tensors
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
    mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
