"""A study with all its hospitals on this machine: a deployment's programs, under supervision."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import as_file, files
from pathlib import Path
from typing import IO, Any

import tomli_w

from erosion.common.errors import ErosionError, StudyError
from erosion.common.rounds.study import check_start
from erosion.common.study.study import Study, load_study
from erosion.common.support.process import peak_megabytes
from erosion.experiments.free_ports import free_address
from erosion.experiments.own_data import own_data
from erosion.experiments.sealed_identities import KEY, write_identities
from erosion.experiments.sources import HospitalFiles, make_hospitals
from erosion.experiments.testbed_limits import TESTBED_BUDGET, testbed_limits
from erosion.server.output.registry import check_outputs
from erosion.server.run import provenance
from erosion.server.run.run_folder import RunFolder, new_run_folder

DATA = "testbed"  # the hospitals' folder in a run's
STOP_SECONDS = 5.0  # between asking a process to end and ending it


def study_path(name: str) -> Path:
    """Return a path, or the name of a study that comes with the program. Raises StudyError.

    Of a folder, its study.toml.
    """
    if Path(name).is_dir():
        return Path(name) / "study.toml"
    if name.endswith(".toml") or os.sep in name:
        return Path(name)
    with as_file(files("erosion.experiments") / "studies") as folder:
        known = {path.stem: path for path in sorted(folder.glob("*.toml"))}
    if name not in known:
        raise StudyError(
            f"There is no study named {name!r}. Name one of {', '.join(known)}, or give the path of"
            " a .toml file."
        )
    return known[name]


@dataclass
class _Part:
    """One process of the testbed."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path | None  # None: it speaks on the terminal
    peak_megabytes: float = 0.0

    def poll(self) -> int | None:
        """Return the exit code once it ended; until then, also notes its peak memory."""
        self.peak_megabytes = peak_megabytes(self.process.pid) or self.peak_megabytes
        return self.process.poll()

    def last_error(self) -> str:
        """Return the last that it logged as an error, all lines of it; "" where there is none."""
        if self.log is None:
            return ""
        entries = re.split(
            r"^(?=\d{4}-\d\d-\d\d )", self.log.read_text(errors="replace"), flags=re.M
        )
        errors = [entry for entry in entries if " ERROR " in entry.partition("\n")[0]]
        return errors[-1].partition(" ERROR ")[2].rstrip() if errors else ""

    def last_words(self) -> str:
        """Return what it said last, for a message."""
        if self.log is None:
            return ""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


@dataclass
class _Parts:
    """Every process that the testbed started; none of them outlives it."""

    all: list[_Part] = field(default_factory=list)

    def start(self, name: str, arguments: list[str], log: Path | None) -> _Part:
        # Several processes share the cores: more than one thread each would only get in the way.
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            provenance.COMMAND_VARIABLE: provenance.command(),
        }
        if log is not None:  # its hospitals' budgets are this run's alone
            environment["XDG_STATE_HOME"] = str(log.parent / "home")
        output: IO[bytes] | None = log.open("wb") if log else None
        try:
            # A separate session, so that Ctrl-C reaches only the testbed, which then ends the
            # others in order. Standard input is a pipe that closes even if the testbed is killed.
            process = subprocess.Popen(
                [sys.executable, "-m", "erosion", *arguments, "--until-stdin-closes"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )
        finally:
            if output:
                output.close()
        part = _Part(name, process, log)
        self.all.append(part)
        return part

    def stop(self) -> None:
        """Ask every process to end, then see to it."""
        running = [part for part in self.all if part.poll() is None]
        for part in running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(part.process.pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        while any(part.poll() is None for part in running) and time.monotonic() < deadline:
            time.sleep(0.02)
        for part in running:
            while part.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(part.process.pid, signal.SIGKILL)
                time.sleep(0.02)
        for part in self.all:
            if part.process.stdin:
                part.process.stdin.close()


@contextlib.contextmanager
def _supervised() -> Iterator[_Parts]:
    parts = _Parts()
    try:
        yield parts
    finally:
        parts.stop()


def run_testbed(
    study_file: Path,
    *,
    runs: Path,
    data_dir: Path,
    verbosity: int,
    outputs: Sequence[str],
    weights: Path | None,
) -> int:
    """Run a study here; the exit code is the coordinator's. Raises StudyError, DataError.

    `outputs` are the coordinator's, as after its `--output`; `weights` is the folder of files that
    models start from, for everybody.
    """
    study = load_study(study_file)
    check_start(study, weights)
    check_outputs(outputs)
    own = own_data(study, study_file.resolve().parent) if study.testbed is None else None
    folder = new_run_folder(runs, study)
    return run_in_testbed(
        study,
        folder,
        data_dir=data_dir,
        verbosity=verbosity,
        outputs=outputs,
        own=own,
        weights=weights,
    )


def run_in_testbed(
    study: Study,
    folder: RunFolder,
    *,
    data_dir: Path,
    verbosity: int = 0,
    outputs: Sequence[str],
    own: Mapping[str, Mapping[str, Any]] | None,
    weights: Path | None,
) -> int:
    """Return the same in a run folder that was made for this study.

    `own`: [data] of every hospital's site file, for a study without a [testbed] table.
    """
    hospitals = own or make_hospitals(study, folder.path / DATA, data_dir)
    flags = ["-" + "v" * verbosity] if verbosity else []
    told = [f"--output={output}" for output in outputs]
    return deploy(study, folder, hospitals, flags=flags, server_flags=told, weights=weights)


def deploy(
    study: Study,
    folder: RunFolder,
    hospitals: Mapping[str, HospitalFiles | Mapping[str, Any]],
    *,
    flags: Sequence[str] = (),
    server_flags: Sequence[str] = (),
    weights: Path | None = None,
    by_way_of: Callable[[str], contextlib.AbstractContextManager[str]] = contextlib.nullcontext,
) -> int:
    """Run a study here on hospitals with data here; the exit code is the coordinator's.

    `hospitals`: files, or [data] of a site file. `flags` are for every program, `server_flags` for
    the coordinator's too. `by_way_of`: what lies between the sites and the coordinator; it is given
    the coordinator's address and gives what the sites dial.
    """
    started, data = time.monotonic(), folder.path / DATA
    if study.federation.sealed:
        write_identities(data, list(hospitals))
    address = free_address()
    place = ["--address", address, "--run-folder", str(folder.path)]
    compute = {} if weights is None else {"weights": str(weights.absolute())}
    if weights is not None:
        place += ["--weights", str(weights)]
    if study.federation.longest_wait_seconds is None:  # nobody starts a site again here
        place.append(f"--longest-wait={study.federation.join_deadline_seconds:g}")
    print(
        f"Starting the coordinator and {len(hospitals)} hospitals, a process each ...", flush=True
    )
    with by_way_of(address) as dialled, _supervised() as parts:
        server = parts.start(
            "coordinator",
            ["server", str(folder.study), "--insecure", *place, *flags, *server_flags],
            None,
        )
        sites = [
            parts.start(
                name,
                ["client", str(_write_site(data, name, source, dialled, compute, study)), *flags],
                data / name / "log.txt",
            )
            for name, source in hospitals.items()
        ]
        code = _watch(server, sites)
        _tell_of_errors(sites)
    _print_footprint(parts.all, time.monotonic() - started)
    return code


def _watch(server: _Part, sites: list[_Part]) -> int:
    """Wait until the coordinator ends; report a site that ends early, and leave it be."""
    told: set[str] = set()
    while (code := server.poll()) is None:
        for site in sites:
            if site.poll() is not None and site.name not in told:
                told.add(site.name)
                print(
                    f"The site of {site.name} ended (exit code {site.process.returncode}):"
                    f" {site.last_words()}",
                    file=sys.stderr,
                    flush=True,
                )
        if len(told) == len(sites):
            raise ErosionError("Every site ended, so the study cannot go on; see above.")
        time.sleep(0.05)
    return code if code >= 0 else 128 - code


def _tell_of_errors(sites: list[_Part]) -> None:
    """What the sites' own logs say: here nobody has to be kept from reading them."""
    for site in sites:
        if error := site.last_error():
            print(f"At {site.name} ({site.log}): {error}", file=sys.stderr, flush=True)


def _write_site(
    folder: Path,
    name: str,
    source: HospitalFiles | Mapping[str, Any],
    address: str,
    compute: Mapping[str, Any],
    study: Study,
) -> Path:
    if isinstance(source, HospitalFiles):
        source = {"path": str(source.data.resolve()), **source.keys}
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


def _print_footprint(parts: list[_Part], seconds: float) -> None:
    memory = ", ".join(f"{part.name} {part.peak_megabytes:.0f}" for part in parts)
    print(f"Peak memory in MB: {memory}. The testbed took {seconds:.1f} s.", flush=True)
