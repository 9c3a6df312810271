"""One `erosion` process, its log, and what can be done to it; waits have a deadline."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from erosion_common.support.process import peak_megabytes

POLL_SECONDS = 0.05
PATIENCE_SECONDS = 600.0


def wait_until(wanted: Callable[[], object], excuse: Callable[[], str]) -> None:
    """Until `wanted` is true; raises TimeoutError with `excuse` after PATIENCE_SECONDS."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not wanted():
        if time.monotonic() >= end:
            raise TimeoutError(f"not within {PATIENCE_SECONDS:g} s: {excuse()}")
        time.sleep(POLL_SECONDS)


_TIME = re.compile(r"^\d{4}-\d\d-\d\dT\S+ [A-Z]+ (?:erosion\.\w+: )?")


class Program:
    """Starts at once; its output goes to `log`, after what is there already."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        log: Path,
        *,
        within: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`within` is put before the command: `ip netns exec NAME` replaces itself by it."""
        self.name, self._log = name, log
        self._said_before = log.stat().st_size if log.exists() else 0
        self.started = time.monotonic()
        with log.open("ab") as output:
            # Standard input is a pipe that closes even if this program is killed.
            self._process = subprocess.Popen(
                [*within, sys.executable, "-m", "erosion", *arguments, "--until-stdin-closes"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": "1",
                    "PYTHONUNBUFFERED": "1",
                    **(environment or {}),
                },
                start_new_session=True,
            )

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    @property
    def pid(self) -> int:
        """The number of its process."""
        return self._process.pid

    @property
    def peak_megabytes(self) -> float:
        """The most memory that it has had so far."""
        return peak_megabytes(self.pid) or 0.0

    def text(self, since: int | None = None) -> str:
        """Return what the log says from the byte `since` on; None: what this very process said."""
        start = self._said_before if since is None else since
        return self._log.read_bytes()[start:].decode(errors="replace")

    def lines(self, since: int | None = None) -> list[str]:
        """Return the same without the time, line by line."""
        return [_TIME.sub("", line).strip() for line in self.text(since).splitlines()]

    @property
    def mark(self) -> int:
        """Where its log ends now."""
        return self._log.stat().st_size

    def wait_for(self, words: str) -> None:
        """Until it says `words`."""
        self.wait_until(lambda: words in self.text(), f"{words!r}")

    def wait_until(self, wanted: Callable[[], bool], what: str) -> None:
        """Until `wanted`; raises TimeoutError with what it said last."""
        wait_until(wanted, lambda: f"{self.name}: no {what}; it said: {self._tail()}")

    def wait(self) -> int:
        """Its exit code."""
        self.wait_until(lambda: self.exit_code is not None, "end")
        return self._process.returncode

    def kill(self) -> None:
        """SIGKILL: as a power cut, a crash, or the kernel's own choice when memory is short."""
        self._send(signal.SIGKILL)
        self._process.wait(PATIENCE_SECONDS)

    def end(self) -> None:
        """SIGTERM, as systemd does; then SIGKILL."""
        self._send(signal.SIGTERM)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()

    def freeze(self) -> None:
        """SIGSTOP: as a suspended virtual machine, or a disk that hangs."""
        self._send(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self._send(signal.SIGCONT)

    def close(self) -> None:
        """Nothing of it is left after this."""
        if self.exit_code is None:
            self.thaw()
            self.kill()
        if self._process.stdin:
            self._process.stdin.close()

    def _send(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def _tail(self) -> str:
        return " | ".join(self.text().splitlines()[-8:])
