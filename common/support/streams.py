"""Output streams that take any character."""

from typing import IO


def never_fail_to_encode(stream: IO[str]) -> None:
    """Show "?" for what the stream's encoding lacks: an arrow must not end a command."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")
