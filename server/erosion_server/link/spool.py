"""Where large replies and a round's updates go while memory is short."""

import asyncio
import mmap
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from erosion_common.errors import LinkError

LONGEST_PACE_SECONDS = 2.0
LONGEST_WAIT_SECONDS = 25.0  # for the last of all sites


class FileSpace:
    """A reply's arrays in a file without a name, which disappears when nobody uses it."""

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
        """Return the content, mapped: memory is used only where it is read."""
        with self._file:
            if not self._file.tell():
                return memoryview(b"")
            # A private map can be written to, as torch wants it, and never is.
            return memoryview(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_COPY))


class Spool:
    """One study's folder, from the opening of its channel to the end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.updates, self._messages = folder / "updates", folder / "messages"

    def make(self) -> None:
        """Make an empty folder. Raises LinkError."""
        try:
            shutil.rmtree(self._folder, ignore_errors=True)  # of a coordinator that was killed
            for folder in (self._folder, self.updates, self._messages):
                folder.mkdir(mode=0o700)
        except OSError as problem:
            raise LinkError(
                f"The folder {self._folder} cannot be made: {problem.strerror}",
                remedy="Put that right, or keep updates in memory: --updates memory.",
            ) from None

    def remove(self) -> None:
        """Delete the folder and its files."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def space(self) -> FileSpace:
        """Open a file for one reply. Raises OSError."""
        return FileSpace(self._messages)


class TransferThrottle:
    """Lets a transfer begin when the latest one has ended, or some time after that one began.

    So sites on fast connections take turns, and one site's parts are under way at a time. Where
    connections are slow, transfers overlap: the pace is so short that all sites are let in soon,
    and one that falls silent in its transfer delays nobody for long. For one event loop.
    """

    def __init__(self, num_sites: Callable[[], int]) -> None:
        """`num_sites`: how many may send at once."""
        self._num_sites = num_sites
        self._changed = asyncio.Condition()
        self._latest: object | None = None  # the transfer that began last, until it ends
        self._since = 0.0

    async def enter(self, transfer: object) -> None:
        """Wait for this transfer's turn."""
        pace = min(LONGEST_PACE_SECONDS, LONGEST_WAIT_SECONDS / max(1, self._num_sites()))
        end = time.monotonic() + LONGEST_WAIT_SECONDS
        async with self._changed:
            while self._latest is not None:
                left = min(self._since + pace, end) - time.monotonic()
                if left <= 0:
                    break
                try:
                    await asyncio.wait_for(self._changed.wait(), left)
                except TimeoutError:
                    continue
            self._latest, self._since = transfer, time.monotonic()

    async def leave(self, transfer: object) -> None:
        """End a transfer."""
        async with self._changed:
            if self._latest is transfer:
                self._latest = None
                self._changed.notify_all()
