"""A reply's arrays in a file without a name, where memory is short."""

import mmap
import tempfile
from contextlib import suppress
from pathlib import Path


class FileSpace:
    """The file is gone once nobody uses it, whatever happens to this program."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError."""
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - see `memory`

    def __del__(self) -> None:
        with suppress(AttributeError):  # it could not be made
            self._file.close()

    def write(self, data: memoryview) -> None:
        """Append. Raises OSError."""
        while data:
            data = data[self._file.write(data) :]

    def memory(self) -> memoryview:
        """The file's content, mapped: memory is used only where it is read."""
        with self._file:
            if not self._file.tell():
                return memoryview(b"")
            # A private map can be written to, as torch wants it, and never is.
            return memoryview(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_COPY))
