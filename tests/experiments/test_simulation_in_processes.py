"""A simulation in several processes ends as one in this process does, to the last bit."""

import gc
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from erosion.simulation import simulator, worker_processes
from erosion.simulation.simulator import Simulation, simulate, timeless
from erosion_client.training.hospital import Hospital
from erosion_common.errors import Refusal, RunError, StudyError
from erosion_common.protocol.messages import StepResult, TrainRequest, TrainResult
from erosion_common.rounds.records import RoundRecord
from tests.support.close import assert_close
from tests.support.five_hospitals import NAMES, hospitals, study_with
from tests.support.patience import PATIENCE, wait_until
from tests.support.processes import start

HERE = os.getpid()


def without_times(record: RoundRecord) -> RoundRecord:
    """Processes take other times."""

    def timeless_entry(entry: Any) -> Any:
        return replace(entry, site_seconds=None)

    return replace(
        record,
        hospitals={name: timeless_entry(entry) for name, entry in record.hospitals.items()},
        steps=tuple(
            replace(step, hospitals={n: timeless_entry(e) for n, e in step.hospitals.items()})
            for step in record.steps
        ),
    )


def assert_same(one: Simulation, other: Simulation) -> None:
    assert one.finals.keys() == other.finals.keys()
    for arm, final in one.finals.items():
        assert torch.equal(final.params, other.finals[arm].params), arm
        assert final.weights == other.finals[arm].weights
        mine, theirs = one.records[arm], other.records[arm]
        assert [without_times(r) for r in mine] == [without_times(r) for r in theirs]
    assert one.evaluation == other.evaluation
    assert one.personal.keys() == other.personal.keys()
    for arm, personal in one.personal.items():
        assert torch.equal(personal, other.personal[arm])


ARMS: list[dict[str, Any]] = [
    {"weight_erosion": {"distance_penalty": 0.3}, "fedavg": {}, "local": {}},
    {"scaffold": {}, "ditto": {}, "apfl": {}},  # which keep something at the hospitals
    {"fedlin": {}, "fedfomo": {}},  # with several exchanges, or other hospitals' models
    {"fedavg": {"own_parameters": ["output_bias"]}},
]


@pytest.mark.parametrize("arms", ARMS, ids=lambda arms: "-".join(arms))
def test_processes_end_where_one_process_ends(arms: dict[str, Any], tmp_path: Path) -> None:
    study = study_with(arms=arms)
    expected = simulate(study, hospitals(tmp_path), clock=timeless)
    assert_same(simulate(study, hospitals(tmp_path), clock=timeless, workers=2), expected)


@pytest.mark.parametrize(
    "changes",
    [
        {"evaluation": {"folds": 2, "bootstrap": 100}, "rounds": 2},
        {"selection": {"folds": 2, "candidates": {"fedavg": [{"weighting": "uniform"}]}}},
        {"federation": {"compression": "int8"}},
        {"model": {"name": "mlp", "hidden": [700]}, "training": {"steps": 2, "batch_size": 4}},
    ],
    ids=["folds", "selection", "compression", "large arrays"],
)
def test_processes_end_where_one_process_ends_whatever_the_study(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    study = study_with(**{"arms": {"fedavg": {}, "local": {}}, **changes})
    expected = simulate(study, hospitals(tmp_path), clock=timeless)
    assert_same(simulate(study, hospitals(tmp_path), clock=timeless, workers=2), expected)


def test_sealed_rounds_end_alike_but_for_the_random_masks(tmp_path: Path) -> None:
    study = study_with(
        scaling="local",
        model={"name": "mlp", "hidden": [4]},  # enough values for a distance
        arms={"fedavg": {"weighting": "uniform"}},
        federation={"sealed": True, "quorum": 5},
        rounds=2,
    )
    expected = simulate(study, hospitals(tmp_path), clock=timeless)
    found = simulate(study, hospitals(tmp_path), clock=timeless, workers=2)
    assert [r.outcome for r in found.records["fedavg"]] == ["done", "done"]
    assert_close(found.finals["fedavg"].params, expected.finals["fedavg"].params)


def test_more_workers_than_hospitals_are_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = counted(monkeypatch)
    simulate(study_with(rounds=1), hospitals(tmp_path), clock=timeless, workers=100)
    assert started == [5]


def test_collections_pass_over_the_hospitals_only_while_it_runs(tmp_path: Path) -> None:
    frozen: list[int] = []
    simulate(
        study_with(rounds=1), hospitals(tmp_path), lambda _: frozen.append(gc.get_freeze_count())
    )
    assert all(frozen)
    assert gc.get_freeze_count() == 0


def test_a_study_of_short_rounds_stays_in_this_process_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = counted(monkeypatch)
    monkeypatch.setattr(simulator, "WORTH_SECONDS", 1e9)
    simulate(study_with(rounds=2), hospitals(tmp_path), clock=timeless, workers=None)
    assert started == []


def test_a_study_of_long_rounds_goes_on_in_as_many_processes_as_there_are_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = study_with(arms={"ditto": {}, "weight_erosion": {"distance_penalty": 0.3}})
    expected = simulate(study, hospitals(tmp_path), clock=timeless)
    started = counted(monkeypatch)
    monkeypatch.setattr(simulator, "WORTH_SECONDS", 1e-9)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2})
    found = simulate(study, hospitals(tmp_path), clock=timeless, workers=None)
    assert started == [3]
    assert_same(found, expected)  # the first round was here, and what was kept went along


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many processes are started from now on."""
    started: list[int] = []

    class Counted(worker_processes.WorkerProcesses[Any]):
        def __init__(self, *arguments: Any) -> None:
            started.append(arguments[2])
            super().__init__(*arguments)

    monkeypatch.setattr(simulator, "WorkerProcesses", Counted)
    return started


def test_an_eroded_hospital_is_not_asked_in_its_process_either(tmp_path: Path) -> None:
    class FailsWhenEroded(Hospital):
        def answer(self, request: TrainRequest) -> TrainResult | StepResult:
            assert os.getpid() != HERE
            assert request.round == 1, "asked with a weight of 0"
            return super().answer(request)

    study = study_with(arms={"weight_erosion": {"distance_penalty": 1000.0}})
    agents = hospitals(tmp_path, dict.fromkeys(NAMES[1:], FailsWhenEroded))
    found = simulate(study, agents, clock=timeless, workers=2)
    entries = [record.hospitals["bob"] for record in found.records["weight_erosion"]]
    assert [entry.outcome for entry in entries] == ["accepted", *["not_asked"] * 3]


# -- The pipe ----------------------------------------------------------------------------------

FLOATS = 1 << 15  # of an array that a pipe does not take at once


def piped(message: Any) -> Any:
    one, other = get_context("fork").Pipe()
    sender = threading.Thread(target=worker_processes._send, args=(one, message))
    sender.start()
    found = worker_processes._receive(other)
    sender.join(PATIENCE)
    other.close()
    with pytest.raises(EOFError):
        worker_processes._receive(one)
    return found


def test_tensors_arrive_whatever_their_size_and_type() -> None:
    sent = {
        "small": torch.arange(5.0),
        "none": torch.empty(0),
        "number": torch.tensor(3.0),
        "large": torch.randn(3, FLOATS),
        "bytes": torch.arange(8 * FLOATS).to(torch.uint8),
        "turned": torch.randn(FLOATS, 2).T,
        "part": torch.randn(2 * FLOATS)[::2],
    }
    found = piped({**sent, "again": sent["large"], "array": np.arange(4.0 * FLOATS)})
    for name, tensor in sent.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name
        found[name].add_(1)  # it belongs to the receiver
    assert found["again"].data_ptr() == found["large"].data_ptr()
    assert found["array"][-1] == 4 * FLOATS - 1


# -- Faults ------------------------------------------------------------------------------------


def test_a_hospital_s_refusal_costs_the_study_that_hospital_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Refuses(Hospital):
        def answer(self, request: TrainRequest) -> TrainResult | StepResult:
            raise Refusal("bob refuses, for 37 reasons")

    study = study_with(arms={"fedavg": {}})
    found = simulate(study, hospitals(tmp_path, {"bob": Refuses}), clock=timeless, workers=2)
    assert {record.hospitals["bob"].outcome for record in found.records["fedavg"]} == {"absent"}
    assert {record.hospitals["carol"].outcome for record in found.records["fedavg"]} == {"accepted"}
    assert "bob: bob refuses, for 37 reasons" in caplog.text  # told here, not in the process


def test_an_answer_after_its_deadline_is_late_in_a_process_too(tmp_path: Path) -> None:
    ticks = iter(range(10**6))
    study = study_with(arms={"fedavg": {}}, federation={"round_deadline_seconds": 0.5})
    with pytest.raises(RunError, match=r"did not answer within 0\.5 s"):
        simulate(study, hospitals(tmp_path), clock=lambda: float(next(ticks)), workers=2)


def test_a_fault_of_the_program_is_raised_here_with_where_it_happened(tmp_path: Path) -> None:
    class Faulty(Hospital):
        def answer(self, request: TrainRequest) -> TrainResult | StepResult:
            raise ZeroDivisionError("a fault")

    with pytest.raises(ZeroDivisionError, match="a fault") as caught:
        simulate(study_with(), hospitals(tmp_path, {"erin": Faulty}), clock=timeless, workers=2)
    assert any("in answer" in note for note in caught.value.__notes__)


def test_an_exception_that_cannot_be_pickled_is_told_in_words(tmp_path: Path) -> None:
    class OddError(Exception):
        def __init__(self, one: int, two: int) -> None:
            super().__init__(f"odd, {one} and {two}")

    class Faulty(Hospital):
        def answer(self, request: TrainRequest) -> TrainResult | StepResult:
            raise OddError(1, 2)

    with pytest.raises(RunError, match="OddError: odd, 1 and 2"):
        simulate(study_with(), hospitals(tmp_path, {"erin": Faulty}), clock=timeless, workers=2)


def test_a_process_that_is_killed_is_told_in_a_sentence(tmp_path: Path) -> None:
    class Killed(Hospital):
        def answer(self, request: TrainRequest) -> TrainResult | StepResult:
            assert os.getpid() != HERE
            os.kill(os.getpid(), signal.SIGKILL)
            return super().answer(request)

    with pytest.raises(RunError, match=r"ended \(exit code -9\).*fewer workers"):
        simulate(study_with(), hospitals(tmp_path, {"erin": Killed}), clock=timeless, workers=2)


def simulate_as_a_pool_does(folder: Path) -> None:
    simulator.WORTH_SECONDS = 0.0
    simulate(study_with(rounds=1), hospitals(folder), workers=None)
    with pytest.raises(StudyError):
        simulate(study_with(rounds=1), hospitals(folder), workers=2)


def test_a_process_of_a_pool_calls_its_hospitals_in_turn(tmp_path: Path) -> None:
    process = start(simulate_as_a_pool_does, tmp_path)
    process.join(PATIENCE)
    assert process.exitcode == 0


@pytest.mark.parametrize("workers", [0, -1])
def test_no_workers_are_refused(workers: int, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="must be 1 or more"):
        simulate(study_with(), hospitals(tmp_path), workers=workers)


@pytest.mark.parametrize(
    ("compute", "why"),
    [
        ({"threads": 2}, "compute.threads = 1 in every site file"),
        ({"state": "kept"}, "keeps its state"),
    ],
)
def test_what_cannot_be_forked_is_refused_or_called_here(
    compute: dict[str, Any], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def special(site: Any) -> Hospital:
        changed = site.compute.model_copy(
            update={k: tmp_path / v if k == "state" else v for k, v in compute.items()}
        )
        return Hospital(site.model_copy(update={"compute": changed}))

    study, threads = study_with(rounds=1), torch.get_num_threads()
    try:
        agents = hospitals(tmp_path, {"bob": special})
        with pytest.raises(StudyError, match=why):
            simulate(study, agents, clock=timeless, workers=2)
        started = counted(monkeypatch)
        monkeypatch.setattr(simulator, "WORTH_SECONDS", 0.0)
        simulate(study, agents, clock=timeless, workers=None)
        assert started == []
    finally:
        torch.set_num_threads(threads)


# -- No process is left ------------------------------------------------------------------------


class Sleeps(Hospital):
    """Leaves its process's number in its folder, and never answers."""

    def answer(self, request: TrainRequest) -> TrainResult | StepResult:
        (Path(os.environ["FOLDER"]) / f"{self.name}-{os.getpid()}.pid").touch()
        time.sleep(1000)
        return super().answer(request)


def simulates(folder: str) -> None:
    """A program of its own, in a session of its own."""
    os.setsid()
    with (Path(folder) / "err").open("w") as err:
        os.dup2(err.fileno(), sys.stderr.fileno())
    os.environ["FOLDER"] = folder
    simulate(study_with(), hospitals(Path(folder), dict.fromkeys(NAMES, Sleeps)), workers=2)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_the_one_that_forked_it(number: int, tmp_path: Path) -> None:
    program = start(simulates, str(tmp_path), daemon=False)
    assert program.pid is not None
    try:
        wait_until(lambda: len(list(tmp_path.glob("*.pid"))) == 2 or not program.is_alive())
        pids = [int(path.stem.rpartition("-")[2]) for path in tmp_path.glob("*.pid")]
        assert len(pids) == 2, (tmp_path / "err").read_text()
        if number == signal.SIGINT:  # as a terminal does it
            os.killpg(program.pid, number)
        else:
            os.kill(program.pid, number)
        program.join(PATIENCE)
        assert program.exitcode not in (None, 0)
        wait_until(lambda: not any(lives(pid) for pid in pids))
    finally:
        if program.is_alive():
            os.killpg(program.pid, signal.SIGKILL)
            program.join()
    if number == signal.SIGINT:  # one traceback, of the program that was interrupted
        assert (tmp_path / "err").read_text().count("Traceback") == 1


def lives(pid: int) -> bool:
    """A process that has ended may still be waited for by nobody."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_the_simulator_leaves_no_process_behind(tmp_path: Path) -> None:
    pids: set[int] = set()

    class Tells(Hospital):
        def answer(self, request: TrainRequest) -> TrainResult | StepResult:
            (tmp_path / f"{os.getpid()}.pid").touch()
            return super().answer(request)

    agents = hospitals(tmp_path, dict.fromkeys(NAMES, Tells))
    simulator.simulate(study_with(rounds=1), agents, clock=timeless, workers=2)
    pids = {int(path.stem) for path in tmp_path.glob("*.pid")}
    assert len(pids) == 2
    assert os.getpid() not in pids
    assert not any(lives(pid) for pid in pids)
