"""A separate wall clock for a program, which can be stepped while it runs.

A small library is loaded before the C library: it adds to the wall clock what stands in a file.
The monotonic clock stays as it is, as where somebody sets a machine's clock.
"""

import atexit
import os
import shutil
import struct
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from experiments.faults.program import PATIENCE_SECONDS

SOURCE = Path(__file__).with_suffix(".c")


def why_no_steps() -> str | None:
    """Return why a program's clock cannot be stepped here; None where it can."""
    return None if shutil.which("cc") else "there is no C compiler (cc) here"


@cache
def compiled(source: Path) -> Path:
    """Return a library to load before others, compiled from a C file."""
    folder = tempfile.mkdtemp(prefix="erosion-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    library = Path(folder, f"{source.stem}.so")
    command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_SECONDS)
    return library


class SteppedClock:
    """Start programs with `environment`; `step` moves the wall clock of all of them at once."""

    def __init__(self, folder: Path) -> None:
        """Its file is in `folder`."""
        self._file = folder / "clock"
        self._file.write_bytes(bytes(8))
        self.environment = {"LD_PRELOAD": str(compiled(SOURCE)), "STEPPED_CLOCK": str(self._file)}

    def step(self, seconds: int) -> None:
        """From now on the clock is so far ahead of the machine's, or behind it."""
        with self._file.open("r+b") as file:
            os.pwrite(file.fileno(), struct.pack("q", seconds), 0)
