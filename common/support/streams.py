"""Standard streams that are there, and take any character."""

import os
import sys
from typing import IO


def open_missing_streams() -> None:
    """Where a program was started without a standard stream, it has nothing to read or say there.

    Otherwise the next file that it opens would get the stream's number, and a library's complaints.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):  # numbers 0, 1 and 2
        if getattr(sys, name) is None:
            handle = os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
            setattr(sys, name, os.fdopen(handle, mode))


def never_fail_to_encode(stream: IO[str]) -> None:
    """Show "?" for what the stream's encoding lacks: an arrow must not end a command."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")
