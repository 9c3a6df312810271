"""A study with all its hospitals on this machine: a deployment's programs, under supervision.

Each is a process, forked from one that has imported what all of them need.
"""

import contextlib
import multiprocessing
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.resources import as_file, files
from io import TextIOWrapper
from itertools import count
from multiprocessing.connection import Connection as PipeEnd
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import tomli_w

from erosion.simulation.testbed_sites import TESTBED_BUDGET, own_data, testbed_limits
from erosion.sources import Data, make_hospitals
from erosion_common.errors import ErosionError, StudyError
from erosion_common.program.command_line import main
from erosion_common.rounds.study import check_start
from erosion_common.sealed import pinned_keys
from erosion_common.study.study import Study
from erosion_common.support.files import write_private
from erosion_common.support.keys import new_private_key, private_pem
from erosion_common.support.network import free_address
from erosion_common.support.process import imports_for_good, peak_megabytes
from erosion_common.support.text import printable
from erosion_server.output.registry import check_outputs
from erosion_server.run import provenance
from erosion_server.run.run_folder import RunFolder, new_run_folder

DATA = "testbed"  # the hospitals' folder in a run's
KEY = "node.key"
STOP_SECONDS = 5.0  # between asking a process to end and ending it
LOOK_SECONDS = 0.2  # between two looks at the processes
LOOKS_PER_READING = 5  # of their logs
IMPORTED_BY_ALL = (
    *("erosion_client.connection.serve", "erosion_server.coordination.run_study"),
    "scipy.optimize",  # for the user's references, and the coordinator's data check
)
# One thread each: more would only get in the way of the others. Set before torch is imported.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def study_path(name: str) -> Path:
    """Return a path, or the name of a study that comes with the program. Raises StudyError.

    Of a folder, its study.toml.
    """
    if os.path.isdir(name):  # noqa: PTH112 - also False for an invalid path
        return Path(name) / "study.toml"
    if name.endswith(".toml") or os.sep in name:
        return Path(name)
    with as_file(files("erosion") / "studies") as folder:
        known = {path.stem: path for path in sorted(folder.glob("*.toml"))}
    if name not in known:
        raise StudyError(
            f"There is no study named {printable(name, at_most=60)!r}",
            remedy=f"Name one of {', '.join(known)}, or give the path of a .toml file.",
        )
    return known[name]


@dataclass
class _Program:
    """One process of the testbed."""

    name: str
    process: BaseProcess
    pid: int
    log: Path | None  # None: it speaks on the terminal
    peak_megabytes: float = 0.0
    told: str = ""  # the last error of its log that was printed

    def poll(self) -> int | None:
        """Return the exit code once it ended; until then, also notes its peak memory."""
        self.peak_megabytes = peak_megabytes(self.pid) or self.peak_megabytes
        return self.process.exitcode

    def tell_error(self) -> None:
        """Print the last error of its log, unless it was printed: here everybody may read it."""
        error = self._last_error()
        if error and error != self.told:
            self.told = error
            print(f"At {self.name} ({self.log}): {error}", file=sys.stderr, flush=True)

    def _last_error(self) -> str:
        entries = re.split(r"^(?=\d{4}-\d\d-\d\dT)", self._said(), flags=re.M)
        errors = [entry for entry in entries if " ERROR " in entry.partition("\n")[0]]
        return errors[-1].partition(" ERROR ")[2].rstrip().replace("\\n", "\n") if errors else ""

    def last_words(self) -> str:
        """Return what it said last, for a message."""
        return (self._said().strip().splitlines() or ["it said nothing"])[-1]

    def _said(self) -> str:
        return "" if self.log is None else self.log.read_text(errors="replace")


class _Programs(list[_Program]):
    """Every process that the testbed started; as a context manager none of them outlives it."""

    def __init__(self, *, fork: bool) -> None:
        """`fork`: from this process; else from another one, which is started for that."""
        super().__init__()
        # Standard input of all: it closes even if the testbed is killed.
        self._stdin, self._lifeline = multiprocessing.Pipe(duplex=False)
        self._fork = fork
        if fork:
            with imports_for_good():
                for name in IMPORTED_BY_ALL:
                    import_module(name)
        else:
            multiprocessing.set_forkserver_preload([*IMPORTED_BY_ALL])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Ask every process to end, then see to it."""
        running = [program for program in self if program.poll() is None]
        for program in running:
            _signal(program, signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        while any(program.poll() is None for program in running) and time.monotonic() < deadline:
            time.sleep(0.02)
        for program in running:
            while program.poll() is None:
                _signal(program, signal.SIGKILL)
                time.sleep(0.02)
        self._stdin.close()
        self._lifeline.close()

    def start(self, name: str, arguments: list[str], log: Path | None) -> _Program:
        environment = {
            **os.environ,
            **ONE_THREAD,
            provenance.COMMAND_VARIABLE: provenance.command(),
        }
        files = [os.dup(1), os.dup(2)]
        if log is not None:
            # Its hospitals' budgets are this run's alone.
            environment["XDG_STATE_HOME"] = str(log.parent / "home")
            with log.open("wb") as output:
                for file in files:
                    os.dup2(output.fileno(), file, inheritable=False)
        outputs = [PipeEnd(file, readable=False) for file in files]
        lifeline = self._lifeline if self._fork else None
        given = [*arguments, "--until-stdin-closes"]
        with _starting():
            fork = multiprocessing.get_context("fork").Process
            ask_server = multiprocessing.get_context("forkserver").Process
            process = (fork if self._fork else ask_server)(
                target=_become, args=(name, given, environment, [self._stdin, *outputs], lifeline)
            )
            process.start()
        for end in outputs:
            end.close()
        assert process.pid is not None
        self.append(_Program(name, process, process.pid, log))
        return self[-1]


@contextlib.contextmanager
def _starting() -> Iterator[None]:
    """Start the process that others are forked from with one thread, and not with our caller.

    A script that calls `erosion.testbed` would otherwise be run again in each program.
    """
    caller, before = sys.modules["__main__"], dict(os.environ)
    sys.modules["__main__"] = ModuleType("__main__")
    os.environ.update(ONE_THREAD)
    try:
        yield
    finally:
        sys.modules["__main__"] = caller
        os.environ.clear()
        os.environ.update(before)


def _become(
    name: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    streams: Sequence[PipeEnd],
    lifeline: PipeEnd | None,
) -> None:
    """Be the command `erosion` with these arguments and streams: input, output, errors."""
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, signal.SIG_DFL)
    # Ctrl-C is for the testbed alone, which then ends the others in order.
    os.setsid()
    if lifeline is not None:  # forked with it; only the testbed is to hold it
        lifeline.close()
    os.environ.clear()
    os.environ.update(environment)
    for number, stream in enumerate(streams):
        os.dup2(stream.fileno(), number)
    for stream in streams:
        stream.close()
    for printed in (sys.stdout, sys.stderr):
        if isinstance(printed, TextIOWrapper):
            printed.reconfigure(line_buffering=True)
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(name[:15])  # which `ps` and `top` show
    sys.exit(main(arguments))


def _signal(program: _Program, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(program.pid, number)


def run_testbed(
    study: Study,
    study_folder: Path,
    *,
    runs: Path,
    data_dir: Path,
    verbosity: int = 0,
    outputs: Sequence[str],
    weights: Path | None,
    device: str = "cpu",
    fork: bool = False,
) -> tuple[RunFolder, int]:
    """Run a study here; return its folder and the coordinator's exit code.

    `study_folder`: with the hospitals' files, for a study without a [testbed] table. `outputs` are
    the coordinator's, as after its `--output`; `weights` is the folder of files that models
    start from, for everybody, and `device` what every hospital trains on. `fork`: as for `deploy`.
    Raises StudyError, DataError.
    """
    check_start(study, weights)
    check_outputs(outputs)
    own = own_data(study, study_folder) if study.testbed is None else None
    folder = new_run_folder(runs, study)
    code = deploy(
        study,
        folder,
        own or make_hospitals(study, folder.path / DATA, data_dir),
        flags=["-" + "v" * verbosity] if verbosity else [],
        server_flags=[f"--output={output}" for output in outputs],
        weights=weights,
        device=device,
        fork=fork,
    )
    return folder, code


def deploy(
    study: Study,
    folder: RunFolder,
    hospitals: Mapping[str, Data],
    *,
    flags: Sequence[str] = (),
    server_flags: Sequence[str] = (),
    server_log: Path | None = None,
    weights: Path | None = None,
    device: str = "cpu",
    by_way_of: Callable[[str], contextlib.AbstractContextManager[str]] = contextlib.nullcontext,
    fork: bool = False,
) -> int:
    """Run a study here on hospitals with data here; the exit code is the coordinator's.

    `hospitals`: files, or [data] of a site file. `flags` are for every program, `server_flags` for
    the coordinator's too, which speaks on the terminal or to `server_log`. `by_way_of`: what lies
    between the sites and the coordinator; it is given the coordinator's address and gives what the
    sites dial. `fork`: the programs are forked from this process, which saves its imports; only for
    one without other threads, in which neither gRPC nor CUDA was used.
    """
    started, data = time.monotonic(), folder.path / DATA
    if study.federation.sealed:
        write_identities(data, list(hospitals))
    address = free_address()
    place = ["--address", address, "--run-folder", str(folder.path)]
    compute = {"device": device} | ({} if weights is None else {"weights": str(weights.absolute())})
    if weights is not None:
        place += ["--weights", str(weights)]
    if study.federation.longest_wait_seconds is None:  # nobody starts a site again here
        place.append(f"--longest-wait={study.federation.join_deadline_seconds:g}")
    print(
        f"Starting the coordinator and {len(hospitals)} hospitals, a process each ...", flush=True
    )
    with by_way_of(address) as dialled, _Programs(fork=fork) as programs:
        server = programs.start(
            "coordinator",
            ["server", str(folder.study), "--insecure", *place, *flags, *server_flags],
            server_log,
        )
        sites = [
            programs.start(
                name,
                ["client", str(_write_site(data, name, source, dialled, compute, study)), *flags],
                data / name / "log.txt",
            )
            for name, source in hospitals.items()
        ]
        code = _watch(server, sites)
        for site in sites:
            site.tell_error()
    memory = ", ".join(f"{program.name} {program.peak_megabytes:.0f}" for program in programs)
    took = time.monotonic() - started
    print(f"Peak memory in MB: {memory}. The testbed took {took:.1f} s.", flush=True)
    return code


def _watch(server: _Program, sites: list[_Program]) -> int:
    """Wait until the coordinator ends; report a site that ends early, and leave it be.

    A site's first error is printed at once: it may explain why its hospital is missing.
    """
    reported: set[str] = set()
    looks = count()
    while (code := server.poll()) is None:
        reads_logs = next(looks) % LOOKS_PER_READING == 0
        for site in sites:
            if reads_logs and not site.told:
                site.tell_error()
            if site.poll() is not None and site.name not in reported:
                reported.add(site.name)
                print(
                    f"The site of {site.name} ended (exit code {site.process.exitcode}):"
                    f" {site.last_words()}",
                    file=sys.stderr,
                    flush=True,
                )
        if len(reported) == len(sites):
            raise ErosionError("Every site ended, so the study cannot go on; see above.")
        server.process.join(LOOK_SECONDS)
    return code if code >= 0 else 128 - code


def _write_site(
    folder: Path, name: str, source: Data, address: str, compute: Mapping[str, Any], study: Study
) -> Path:
    path = folder / name / "site.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    site = {
        "name": name,
        "data": source,
        "coordinator": {"address": address},
        "approval": {"automatic": "within_limits"},
        "budget": TESTBED_BUDGET,
        "compute": {"public_order": True, **compute},  # so that the run is the same again
    }
    if limits := testbed_limits(study, name):
        site["limits"] = limits
    if (key := path.with_name(KEY)).exists():
        site["sealed"] = {"private_key": key.name}
    path.write_text(tomli_w.dumps(site), encoding="utf-8")
    return path


def write_identities(folder: Path, names: Sequence[str]) -> None:
    """Write keys for sealed rounds, where no hospital was enrolled."""
    keys = {name: new_private_key() for name in names}
    for name, key in keys.items():
        write_private(folder / name / KEY, private_pem(key))
        others = {other: keys[other].public_key() for other in names if other != name}
        (folder / name / pinned_keys.NAME).write_text(pinned_keys.as_text(others))
