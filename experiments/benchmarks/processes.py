"""Starting the processes of a benchmark, each in its own process group, and ending all of them."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from erosion.simulation.free_ports import LOOPBACK
from experiments.benchmarks.process_memory import MemorySampler

POLL_SECONDS = 0.02
GRACE_SECONDS = 5.0  # between SIGTERM and SIGKILL
ROOT = Path(__file__).resolve().parents[2]


class BenchmarkError(RuntimeError):
    """A system under measurement failed or did not finish in time."""


@dataclass(frozen=True, slots=True)
class Child:
    """A started process, the leader of its process group."""

    role: str
    process: "subprocess.Popen[bytes]"
    stdout: Path
    stderr: Path

    def complaint(self) -> str:
        """Return the last lines that it wrote, for an error message."""
        text = self.stderr.read_text(errors="replace") + self.stdout.read_text(errors="replace")
        return "\n".join(f"    {line}" for line in text.splitlines()[-15:])


class Processes:
    """All processes of one measurement; leaving the `with` block ends every one of them.

    Every wait counts against one deadline. `folder` is temporary and goes with the block.
    """

    folder: Path

    def __init__(self, *, deadline_seconds: float) -> None:
        self._deadline_seconds = deadline_seconds
        self._ends = time.monotonic() + deadline_seconds
        self._children: list[Child] = []
        self._stack = ExitStack()
        self.memory = MemorySampler()

    def __enter__(self) -> "Processes":
        folder = tempfile.TemporaryDirectory(
            prefix="erosion-benchmark-", ignore_cleanup_errors=True
        )
        self.folder = Path(self._stack.enter_context(folder))
        self._stack.enter_context(self.memory)
        self._ends = time.monotonic() + self._deadline_seconds
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with _interrupts_ignored(), self._stack:
            end_groups([child.process for child in self._children])

    def start(
        self, role: str, command: Sequence[str | Path], *, env: Mapping[str, str] | None = None
    ) -> Child:
        """Start a process that is to live on; `env` is added to the quiet environment."""
        number = len(self._children)
        stdout, stderr = (self.folder / f"{number}-{role}.{kind}" for kind in ("out", "err"))
        with stdout.open("wb") as out, stderr.open("wb") as err:
            process = subprocess.Popen(
                [str(word) for word in command],
                cwd=self.folder,
                env={**quiet_environment(), "FLWR_HOME": str(self.folder), **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        child = Child(role, process, stdout, stderr)
        self._children.append(child)
        self.memory.watch(process.pid, role)
        return child

    def start_module(
        self, role: str, module: str, *arguments: str | Path, env: Mapping[str, str] | None = None
    ) -> Child:
        """Start `python -m MODULE ARGUMENTS`."""
        return self.start(role, [sys.executable, "-m", module, *arguments], env=env)

    def output_of(
        self, role: str, command: Sequence[str | Path], *, env: Mapping[str, str] | None = None
    ) -> str:
        """Run a command to its end and return what it printed; its exit code must be 0."""
        child = self.start(role, command, env=env)
        self.wait_for_exit([child])
        return child.stdout.read_text(encoding="utf-8")

    def wait_for_exit(self, children: Sequence[Child]) -> None:
        """Wait until these have ended, each with exit code 0."""
        while any(child.process.poll() is None for child in children):
            self.pause("processes to end")
        self.check()

    def wait_for_ports(self, ports: Sequence[int]) -> None:
        """Wait until something listens on each of these ports."""
        for port in ports:
            while not _listens(port):
                self.pause(f"port {port}")

    def pause(self, waiting_for: str, *, seconds: float = POLL_SECONDS) -> None:
        """Sleep a moment, unless a process has failed or the deadline has passed."""
        self.check()
        if time.monotonic() > self._ends:
            voices = "\n".join(f"  {child.role}:\n{child.complaint()}" for child in self._children)
            raise BenchmarkError(
                f"gave up on {waiting_for}: {self._deadline_seconds:g} s are over\n{voices}"
            )
        time.sleep(seconds)

    def check(self) -> None:
        """Raise BenchmarkError if any process has ended with another exit code than 0."""
        for child in list(self._children):
            code = child.process.poll()
            if code:
                raise BenchmarkError(f"{child.role} ended with code {code}:\n{child.complaint()}")
            if not _group_lives(child.process):
                self._children.remove(child)  # its number may soon belong to somebody else's group


def quiet_environment() -> dict[str, str]:
    """This process's environment, with one thread per process, no telemetry and no update check."""
    return {
        **os.environ,
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "NO_PROXY": LOOPBACK,
        "OMP_NUM_THREADS": "1",
        # Flower starts its helpers by bare name, and they import this package.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "PYTHONPATH": str(ROOT),
        "no_proxy": LOOPBACK,
    }


def end_groups(leaders: Sequence["subprocess.Popen[bytes]"]) -> None:
    """End whole process groups: politely, and after a grace period for good."""
    for leader in leaders:
        _signal_group(leader, signal.SIGTERM)
    ends = time.monotonic() + GRACE_SECONDS
    while any(_group_lives(leader) for leader in leaders) and time.monotonic() < ends:
        time.sleep(POLL_SECONDS)
    for leader in leaders:
        _signal_group(leader, signal.SIGKILL)
        leader.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((LOOPBACK, port)) == 0


def _signal_group(leader: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    try:
        os.killpg(leader.pid, number)
    except ProcessLookupError:
        return  # the whole group has ended


def _group_lives(leader: "subprocess.Popen[bytes]") -> bool:
    leader.poll()  # reaps it, so that a zombie does not count as alive
    try:
        os.killpg(leader.pid, 0)
    except ProcessLookupError:
        return False
    return True


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """A second Ctrl-C must not stop the cleaning up."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python delivers signals to the main thread only
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, handlers, strict=True):
            signal.signal(number, handler)
