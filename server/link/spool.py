"""The folder for large replies and a round's updates, where memory is short."""

import shutil
from collections.abc import Callable
from pathlib import Path

from erosion.common.errors import LinkError
from erosion.server.link.file_space import FileSpace
from erosion.server.link.transfer_throttle import TransferThrottle


class Spool:
    """Made when the port is opened, and gone with it. Not every study needs it: `is_used`."""

    def __init__(self, folder: Path, num_sites: Callable[[], int]) -> None:
        """`num_sites`: how many may send at once."""
        self._folder = folder
        self.updates, self._messages = folder / "updates", folder / "messages"
        self.throttle = TransferThrottle(num_sites)
        self.is_used = True

    def make(self) -> None:
        """An empty folder. Raises LinkError."""
        try:
            shutil.rmtree(self._folder, ignore_errors=True)  # of a coordinator that was killed
            for folder in (self._folder, self.updates, self._messages):
                folder.mkdir(mode=0o700)
        except OSError as problem:
            raise LinkError(
                f"The folder {self._folder} cannot be made: {problem.strerror}. Put that right, or"
                " keep updates in memory: --updates memory."
            ) from None

    def remove(self) -> None:
        """With all that is in it."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def space(self) -> FileSpace:
        """For one reply. Raises OSError."""
        return FileSpace(self._messages)
