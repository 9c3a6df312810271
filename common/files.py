"""Writing files so that a reader never sees half of one."""

import os
import tempfile
from pathlib import Path


def write_atomically(path: Path, content: bytes | str, *, mode: int = 0o644) -> None:
    """Replace `path` by `content`: after a crash the file is the old one or the new one.

    `mode` are the permissions; before it has them, nobody but the owner can open the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    binary = content.encode() if isinstance(content, str) else content
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(binary)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def version_of(path: Path) -> tuple[int, int, int]:
    """Differs once the file was replaced; also where there is no file."""
    try:
        status = path.stat()
    except OSError:
        return (0, 0, 0)
    # The inode, because two replacements within a tick of the clock have the same time.
    return (status.st_ino, status.st_size, status.st_mtime_ns)
