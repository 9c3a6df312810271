"""An `erosion` process that starts in milliseconds: it is forked from one with its imports."""

import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.faults.program import Program
from experiments.two_machines import ENVIRONMENT, Machine
from tests.support import programs
from tests.support.processes import start


class ForkedProcess:
    """What `Program` and a `Machine` need of a process."""

    stdin = None

    def __init__(self, *program: Any, is_daemon: bool, environment: Mapping[str, str]) -> None:
        self._process = start(*program, daemon=is_daemon, environment=environment)
        self.pid, self.kill = self._process.pid, self._process.kill

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("erosion", timeout)
        return self._process.exitcode


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
        program: tuple[Any, ...] = (programs.erosion, str(log))
        if version is not None:
            program = (programs.erosion_of_version, str(log), *version)
        elif within:
            program = (programs.erosion_in_network, within[-1], str(log))
        self._process = ForkedProcess(  # type: ignore[assignment]
            *program, *arguments, is_daemon=is_daemon, environment=environment or {}
        )


class ForkedMachine(Machine):
    """A machine that forks its programs; they see its network, folder and hosts file."""

    def begin(self, words: Sequence[str], output: Path) -> ForkedProcess:
        program, *arguments = words
        assert program == ".venv/bin/erosion"
        within = (self.network.inside(self.name)[-1], str(self.folder), str(output))
        return ForkedProcess(
            *(programs.erosion_on_machine, *within, *arguments),
            is_daemon=True,
            environment=ENVIRONMENT,
        )
