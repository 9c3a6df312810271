"""A disk that is full for one file or folder of a program, until somebody makes room."""

import shutil
from pathlib import Path

from experiments.faults.stepped_clock import compiled
from tests.support.patience import wait_until

SOURCE = Path(__file__).with_suffix(".c")


def why_no_full_disk() -> str | None:
    """Return why there can be none here; None where there can."""
    return None if shutil.which("cc") else "there is no C compiler (cc) here"


class FullDisk:
    """Start programs with `environment`."""

    def __init__(self, folder: Path) -> None:
        """Its file is in `folder`."""
        self._file = folder / "full"
        self._file.touch()
        self.environment = {"LD_PRELOAD": str(compiled(SOURCE)), "FULL_DISK": str(self._file)}

    def fill(self, place: str) -> None:
        """From now on nothing can be written to a file with `place` in its path."""
        self._file.write_text(f"{place}\n", encoding="ascii")

    def wait_until_noticed(self) -> None:
        """Wait until a program has tried in vain."""
        wait_until(lambda: "full" in self._file.read_text().partition("\n")[2])

    def make_room(self) -> None:
        """Everything can be written again."""
        self._file.write_text("", encoding="ascii")
