"""An `erosion` process that starts in milliseconds: it is forked from one with its imports."""

import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.faults.program import Program
from tests.support import programs
from tests.support.processes import start


class _Process:
    """What `Program` needs of a process."""

    stdin = None

    def __init__(
        self,
        log: Path,
        arguments: Sequence[str],
        version: tuple[str, int] | None,
        network: str | None,
        is_daemon: bool,
        environment: Mapping[str, str],
    ) -> None:
        program: tuple[Any, ...] = (programs.erosion, str(log))
        if version is not None:
            program = (programs.erosion_of_version, str(log), *version)
        elif network is not None:
            program = (programs.erosion_in_network, network, str(log))
        self._process = start(*program, *arguments, daemon=is_daemon, environment=environment)
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
    """Like `Program`, without another program around it but `ip netns exec`."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        log: Path,
        version: tuple[str, int] | None = None,
        *,
        within: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        is_daemon: bool = True,
    ) -> None:
        """`is_daemon`: see `start`."""
        self.name, self._log = name, log
        self._said_before = log.stat().st_size if log.exists() else 0
        self.started = time.monotonic()
        log.touch()
        network = within[-1] if within else None
        self._process = _Process(log, arguments, version, network, is_daemon, environment or {})  # type: ignore[assignment]
