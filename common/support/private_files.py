"""Files that only their owner may read: keys, and the folders that hold them."""

import stat
from pathlib import Path
from shlex import quote

from erosion.common.support.files import write_atomically


def make_private_folder(path: Path) -> None:
    """Make `path` if need be, and close it to everybody else."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.chmod(0o700)


def write_private(path: Path, content: bytes | str, *, first_stays: bool = False) -> None:
    """Replace `path` by `content`, readable by its owner alone from the first byte on.

    `first_stays`: as of `replacing`, where two programs write what each has drawn.
    """
    write_atomically(path, content, mode=0o600, first_stays=first_stays)


def exposure(path: Path) -> str | None:
    """Why a private file is not private, with the remedy; None where it is. Raises OSError."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077 == 0:
        return None
    return (
        f"others on this machine may read it (mode {mode:04o}); run: chmod 600 {quote(str(path))}"
    )
