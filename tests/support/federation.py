"""A real deployment for tests: the coordinator in this process, every site a process of its own."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Self

import pytest
import torch

from erosion.simulation.simulator import Simulation, simulate
from erosion_client.site_file import load_site
from erosion_client.training.hospital import Hospital
from erosion_common.errors import ErosionError
from erosion_common.rounds import checkpoint
from erosion_common.rounds.events import (
    ArmFinished,
    ArmStarted,
    HospitalDeclined,
    HospitalJoined,
    HospitalLeft,
    RoundFinished,
)
from erosion_common.rounds.records import RoundRecord
from erosion_common.study.study import Study
from erosion_server.coordination.run_study import Planned, Setup, run_on
from erosion_server.link import Link
from erosion_server.output.events import (
    EveryUserFinished,
    RunEvent,
    RunFinished,
    StudyStarted,
    UserFailed,
)
from erosion_server.output.observers import Observer, Observers
from erosion_server.run.overview import Overview
from erosion_server.run.result import Result
from erosion_server.run.run_folder import RunFolder, new_run_folder
from tests.support import programs
from tests.support.close import assert_close
from tests.support.patience import PATIENCE
from tests.support.processes import start
from tests.support.small_study import TWO_NUMBERS, make_study, sixty_patients


def small_study(**changes: Any) -> Study:
    """Three hospitals, two features, a few rounds."""
    values: dict[str, Any] = {
        "user": "alice",
        "hospitals": ["alice", "bob", "carol"],
        "rounds": 4,
        "seed": 3,
        "task": TWO_NUMBERS,
        "scaling": "federated",
        "training": {"steps": 3, "batch_size": 8, "learning_rate": 0.5},
        "arms": {"weight_erosion": {"distance_penalty": 0.1}, "fedavg": {}, "local": {}},
        "evaluation": {"test_share": 0.5, "bootstrap": 100},
        # Nobody waits for these unless a test lets a hospital fall silent.
        "federation": {"round_deadline_seconds": 120.0, "join_deadline_seconds": 300.0},
    }
    return make_study(**{**values, **changes})


def write_site(parent: Path, name: str, address: str, index: int | None = None) -> Path:
    """Write a hospital's data and site file; its patients depend on its name alone."""
    folder = parent / (name if index is None else f"{name}-{index}")
    folder.mkdir(exist_ok=True)
    (folder / "data.csv").write_text(sixty_patients(name))
    path = folder / "site.toml"
    path.write_text(
        f'name = "{name}"\n[data]\npath = "data.csv"\n[coordinator]\naddress = "{address}"\n'
        '[approval]\nautomatic = "within_limits"\n[compute]\npublic_order = true\n'
        "[budget]\nruns_per_study = 1000\n"
    )
    return path


def simulated_alike(study: Study, run: RunFolder, hospitals: Mapping[str, Hospital]) -> Simulation:
    """The study's simulation, to which the run's parameters and weights are held to the bit."""
    simulated = simulate(study, hospitals)
    for arm, final in simulated.finals.items():
        path = run.checkpoint(arm)
        deployed = checkpoint.load(path, final, arm=arm, study_digest=study.digest)
        assert torch.equal(deployed.params, final.params), (study.name, arm)
        assert deployed.weights == final.weights
    return simulated


class Recorder:
    """An observer that remembers."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.records: list[RoundRecord] = []
        self.changed = threading.Condition()

    def _note(self, *event: Any) -> None:
        with self.changed:
            self.events.append(event)
            self.changed.notify_all()

    def wait_for(self, wanted: Callable[[], bool], seconds: float = PATIENCE) -> None:
        """Wait, but not for a run that has failed."""
        with self.changed:
            self.changed.wait_for(lambda: wanted() or self.failed, seconds)
            assert wanted(), self.events

    @property
    def failed(self) -> bool:
        return bool(self.events) and self.events[-1][0] == "failed"

    def fail(self, problem: ErosionError) -> None:
        self._note("failed", str(problem))

    def notify(self, event: RunEvent) -> None:
        match event:
            case StudyStarted(_, address):
                self._note("listening", address)
            case HospitalJoined(hospital):
                self._note("joined", hospital)
            case HospitalDeclined(hospital, reason):
                self._note("declined", hospital, reason)
            case HospitalLeft(hospital):
                self._note("left", hospital)
            case ArmStarted(arm):
                self._note("arm_started", arm)
            case RoundFinished(record):
                self.records.append(record)
                self._note("round", record.arm, record.round)
            case ArmFinished(arm):
                self._note("arm_finished", arm)
            case RunFinished(result):
                self._note("finished", result.user)
            case UserFailed(user, reason):
                self._note("user_failed", user, reason)
            case EveryUserFinished():
                self._note("every_user_finished")

    def close(self) -> None:
        pass


class Federation:
    """Use as a context manager: nothing that it started outlives it."""

    def __init__(
        self, study: Study, folder: Path, link: Link | None = None, setup: Setup | None = None
    ) -> None:
        self.study, self.folder, self._setup = study, folder, setup or Setup()
        self.observer = Recorder()
        self.outputs: dict[str, Observer] = {"recorder": self.observer}
        self.link = link or Link("127.0.0.1:0")
        self.link.start()
        self.run_folder: RunFolder = new_run_folder(folder / "runs", study)
        self.sites: dict[str, BaseProcess] = {}
        self.result: Result | Overview | None = None
        self.error: ErosionError | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.sites.values():
            process.kill()
            process.join(10)
        self.link.stop()
        self._thread.join(10) if self._thread.ident else None
        for process in self.sites.values():
            with suppress(ValueError):
                process.close()

    def site_file(self, name: str, index: int | None = None) -> Path:
        """See `write_site`."""
        return write_site(self.folder, name, self.link.address, index)

    def start_site(
        self, name: str, program: Callable[[str], None] = programs.honest, index: int | None = None
    ) -> BaseProcess:
        """Start a site as a process of its own."""
        path = self.site_file(name, index)
        return self.start_program(name if index is None else f"{name}-{index}", program, path)

    def start_program(
        self, label: str, program: Callable[[str], None], site_file: Path
    ) -> BaseProcess:
        """Start `program` with a site file that is there already."""
        process = start(program, str(site_file))
        self.sites[label] = process
        return process

    def start(self) -> None:
        """Start the coordinator."""
        self._thread.start()

    def finish(self, seconds: float = PATIENCE) -> Result:
        """The result, within `seconds`."""
        self._wait(seconds)
        assert isinstance(self.result, Result)
        return self.result

    def run_with(self, sites: Mapping[str, Callable[[str], None]]) -> Result:
        """The result of the study with these programs."""
        for name, program in sites.items():
            self.start_site(name, program)
        self.start()
        return self.finish()

    def finish_every_user(self) -> Overview:
        """The same where every hospital is the user."""
        self._wait(PATIENCE)
        assert isinstance(self.result, Overview)
        return self.result

    def hospital(self, name: str) -> Hospital:
        """The same hospital in this process, for a simulation."""
        return Hospital(load_site(self.site_file(name)))

    def compare_with_simulation(self, further: Sequence[str] = ()) -> Simulation:
        """Hold every arm's parameters, weights and figures to those of a simulation.

        `further`: hospitals that only measure.
        """
        assert isinstance(self.result, Result)
        study, names = self.study, (*self.study.hospitals, *further)
        simulated = simulate(study, {name: self.hospital(name) for name in names})
        assert list(self.result.arms) == list(simulated.finals)
        for arm, final in simulated.finals.items():
            path = self.run_folder.checkpoint(arm)
            deployed = checkpoint.load(path, final, arm=arm, study_digest=study.digest)
            assert_close(deployed.params, final.params, rtol=1e-6, atol=1e-7)
            assert deployed.weights == pytest.approx(final.weights)
            assert self.result.arms[arm].metrics == simulated.evaluation.arms[arm]
        return simulated

    def _wait(self, seconds: float) -> None:
        self._thread.join(seconds)
        assert not self._thread.is_alive(), f"still running: {self.observer.events}"
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            with Observers(self.outputs) as observers:
                self.result = run_on(
                    self.link, Planned(self.study, self.run_folder, observers), self._setup
                )
        except ErosionError as problem:
            self.error = problem
            self.observer.fail(problem)


@contextmanager
def deployed(
    study: Study, folder: Path, **others: Callable[[str], None]
) -> Iterator[tuple[Federation, Result]]:
    """A deployment that has ended, and its result; a keyword names another program of a site."""
    with Federation(study, folder) as federation:
        sites = {name: others.get(name, programs.honest) for name in study.hospitals}
        yield federation, federation.run_with(sites)
