"""What benchmarks have in common: processes that are started and ended, rounds, and report lines.

Every system does the same work: a site returns the parameters that it received plus its own
constant. The parameters are drawn at random because Flower's object store is content-addressed: a
model that repeats itself, or two sites with the same update, would be uploaded once and flatter the
systems that use the store.
"""

import argparse
import json
import os
import platform
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from erosion_common.aggregation.cohort import Cohort, HospitalName, MemoryCohort, Update
from erosion_common.algorithms.base import Algorithm, RoundStart
from erosion_common.rounds.records import Absence, Answer, RoundRecord, RunState
from erosion_common.rounds.round import Round
from erosion_common.support.network import LOOPBACK
from erosion_server.run.provenance import commit
from experiments.program import output_file

# -- Processes -------------------------------------------------------------------------------------

POLL_SECONDS = 0.02
GRACE_SECONDS = 5.0  # between SIGTERM and SIGKILL
DEADLINE_SECONDS = 1800.0
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

    def __init__(self, *, deadline_seconds: float = DEADLINE_SECONDS) -> None:
        self._deadline_seconds = deadline_seconds
        self._ends = time.monotonic() + deadline_seconds
        self._children: list[Child] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        folder = tempfile.TemporaryDirectory(
            prefix="erosion-benchmark-", ignore_cleanup_errors=True
        )
        self.folder = Path(self._stack.enter_context(folder))
        self._ends = time.monotonic() + self._deadline_seconds
        return self

    def __exit__(self, *_: object) -> None:
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
        return child

    def start_module(
        self,
        role: str,
        module: str,
        *arguments: str | int | Path,
        env: Mapping[str, str] | None = None,
    ) -> Child:
        """Start `python -m MODULE ARGUMENTS`."""
        return self.start(role, [sys.executable, "-m", module, *map(str, arguments)], env=env)

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
            if code := child.process.poll():
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


def _signal_group(leader: "subprocess.Popen[bytes]", number: int) -> bool:
    """Return whether any process of the group is there."""
    try:
        os.killpg(leader.pid, number)
    except ProcessLookupError:
        return False
    return True


def _group_lives(leader: "subprocess.Popen[bytes]") -> bool:
    leader.poll()  # reaps it, so that a zombie does not count as alive
    return _signal_group(leader, 0)


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


def resident_bytes(field: str) -> int:
    """This process's memory now ("VmRSS") or at its highest ("VmHWM")."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    values = dict(line.split(":", 1) for line in lines)
    return int(values[field].split()[0]) * 1024


def proportional_mb(group: int) -> float:
    """Return the memory of a process group in MB; a page that n processes share counts 1/n in each.

    The kernel walks all pages for it: do not call it ten times a second.
    """
    total = 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended between two of these lines
            if os.getpgid(int(process.name)) == group:
                lines = (process / "smaps_rollup").read_text(encoding="utf-8").splitlines()
                total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total * 1024 / 1e6


# -- Rounds ----------------------------------------------------------------------------------------

Vector = npt.NDArray[np.float32]  # (dim,)


def initial_parameters(dim: int) -> Vector:
    """Return the model before round 1; the same for every system."""
    return np.random.default_rng(0).standard_normal(dim, dtype=np.float32)


def site_constant(site: int) -> np.float32:
    """Return what site 0, 1, ... adds to every parameter in every round."""
    return np.float32(site + 1)


def advance(
    state: RunState,
    algorithm: Algorithm[Any],
    answers: Mapping[HospitalName, Answer],
    *,
    arm: str,
    user: HospitalName,
    quorum: int,
    cohort_of: Callable[[Update, Mapping[HospitalName, Update]], Cohort] = MemoryCohort,
) -> tuple[RunState, RoundRecord]:
    """Return a whole round of a method that asks once: `answers` are all that was asked for."""
    answers = {user: Absence("was not connected"), **answers}
    names = tuple(answers)
    round_ = Round(
        state,
        algorithm,
        RoundStart(state.round + 1, user, names, state.params),
        arm=arm,
        wanted=names,
        spare=len(names) - quorum,
        cohort_of=cohort_of,
    )
    round_.answer(answers)
    return round_.outcome


class RoundClock:
    """Appends one line per finished round to a file, as seconds of wall-clock time.

    The first `tick` starts the clock: call it when every site is connected.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")
        self._last: float | None = None

    def tick(self) -> None:
        """End a round, and begin the next one."""
        now = time.perf_counter()
        if self._last is not None:
            self._write({"seconds": now - self._last})
        self._last = time.perf_counter()

    def finish(self, shift: float) -> None:
        """Close the file with the proof that the work was done: how far a parameter moved."""
        self._write({"shift": shift})
        self._file.close()

    def _write(self, line: dict[str, float]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


@dataclass(frozen=True, slots=True)
class Rounds:
    """How long a system's rounds took."""

    seconds_per_round: tuple[float, ...]
    seconds_by_part: Mapping[str, float] | None = None  # part -> median per round

    @property
    def median_seconds(self) -> float:
        """The middle round."""
        return statistics.median(self.seconds_per_round)


def read_rounds(path: Path, num_sites: int, num_rounds: int) -> Rounds:
    """Read what a `RoundClock` wrote.

    Raises BenchmarkError when rounds are missing or when a site's update was left out: the
    unweighted mean of all sites moves a parameter by (num_sites + 1) / 2 in a round.
    """
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    seconds = tuple(float(line["seconds"]) for line in lines if "seconds" in line)
    shifts = [float(line["shift"]) for line in lines if "shift" in line]
    expected = num_rounds * (num_sites + 1) / 2
    if len(seconds) != num_rounds or len(shifts) != 1:
        raise BenchmarkError(f"{len(seconds)} of {num_rounds} rounds ended")
    if abs(shifts[0] - expected) > 1e-3 * expected:
        raise BenchmarkError(
            f"the parameters moved by {shifts[0]:g}, expected {expected:g}: an update is missing"
        )
    return Rounds(seconds)


# -- Reports ---------------------------------------------------------------------------------------

PACKAGES = ("flwr", "grpcio", "numpy", "protobuf", "torch")


@dataclass(frozen=True, slots=True)
class ReportLine:
    """Ours and one peer, in one unit."""

    name: str  # "round_overhead.tiny.vs_stock"
    ours: float
    peer: float
    unit: str  # "s/round"
    lower_is_better: bool = True

    @property
    def ratio(self) -> float:
        """How many times better ours is: above 1, ours wins, in any unit."""
        better, worse = (self.peer, self.ours) if self.lower_is_better else (self.ours, self.peer)
        return better / worse if worse else float("inf")

    def __str__(self) -> str:
        return (
            f"{self.name} ratio={self.ratio:.3g} ours={self.ours:.4g} peer={self.peer:.4g} "
            f"{self.unit}"
        )


def parser_of(about: str | None) -> argparse.ArgumentParser:
    """Return a benchmark's command line, with --json."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=about, formatter_class=raw)
    parser.add_argument(
        "--json", type=output_file, metavar="FILE", help="also write the result as JSON"
    )
    return parser


def count(text: str) -> int:
    """Return the type of an argument that is a number of 0 or more."""
    if int(text) < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative; give 0 or more")
    return int(text)


def say(text: str) -> None:
    """On standard error, where a benchmark says what it is doing."""
    print(text, file=sys.stderr, flush=True)


def report(
    lines: Sequence[ReportLine],
    *,
    json_path: Path | None = None,
    details: Mapping[str, Any] | None = None,
) -> None:
    """Print the lines; with `json_path`, write them with all that is needed to repeat them."""
    for line in lines:
        print(line, flush=True)
    if json_path is not None:
        content = {
            "lines": [{**asdict(line), "ratio": line.ratio} for line in lines],
            **provenance(),
            "details": dict(details or {}),
        }
        json_path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def provenance() -> dict[str, Any]:
    """Return the command, the commit, the versions and the machine behind a figure."""
    return {
        "command": command_line(),
        "commit": commit(),
        "versions": {"python": platform.python_version()}
        | {package: metadata.version(package) for package in PACKAGES},
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "processors": len(os.sched_getaffinity(0)),
            "load_average": round(os.getloadavg()[0], 2),
        },
    }


def command_line() -> str:
    """Return the command that started this program, without the paths of this machine."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    program = ["python", "-m", spec.name] if spec is not None else [Path(sys.argv[0]).name]
    return shlex.join([*program, *sys.argv[1:]])
