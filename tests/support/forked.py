"""An `erosion` process that starts in milliseconds: it is forked from one with its imports."""

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from experiments.faults.program import Program
from tests.support import programs
from tests.support.processes import start


class _Process:
    """What `Program` needs of a process."""

    stdin = None

    def __init__(
        self, log: Path, arguments: Sequence[str], version: tuple[str, int] | None
    ) -> None:
        if version is None:
            self._process = start(programs.erosion, str(log), *arguments)
        else:
            self._process = start(programs.erosion_of_version, str(log), *version, *arguments)
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float) -> None:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("erosion", timeout)


class Forked(Program):
    """Like `Program`, in this environment and without another program around it."""

    def __init__(
        self, name: str, arguments: Sequence[str], log: Path, version: tuple[str, int] | None = None
    ) -> None:
        self.name, self._log = name, log
        self._said_before = log.stat().st_size if log.exists() else 0
        self.started = time.monotonic()
        log.touch()
        self._process = _Process(log, arguments, version)  # type: ignore[assignment]
