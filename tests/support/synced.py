"""What a program waits for on the disk, and in which order."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest


def synced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Path]]:
    """A list that every call goes to: which, and of what; of a replacement, by what."""
    calls: list[tuple[str, Path]] = []

    def noting(name: str, of: Callable[..., Path]) -> None:
        real = getattr(os, name)

        def call(*given: object) -> None:
            calls.append((name, of(*given)))
            real(*given)

        monkeypatch.setattr(os, name, call)

    for name in ("fsync", "fdatasync"):
        noting(name, lambda handle: Path(f"/proc/self/fd/{handle}").readlink())
    noting("replace", lambda new, _: Path(new))
    return calls
