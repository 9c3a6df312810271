"""The most memory that a piece of work takes at a time."""

from collections.abc import Callable
from pathlib import Path

from experiments.benchmarks.harness import resident_bytes

LARGE = 10_000_000  # float32 values: malloc gives memory of more than 32 MiB back at once


def peak_bytes(work: Callable[[], object]) -> int:
    """Above what this process had before; pages that were read of a mapped file count."""
    Path("/proc/self/clear_refs").write_text("5")  # the highest is what it is now
    before = resident_bytes("VmRSS")
    work()
    return resident_bytes("VmHWM") - before
