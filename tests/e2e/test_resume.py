"""A coordinator killed at any moment and resumed ends where an uninterrupted one does."""

import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch

from erosion.command_line import main
from erosion.common.learning.models import build_model, flat_parameters
from erosion.common.rounds import checkpoint, one_round, study_run
from erosion.common.study.study import Study, study_from_json
from erosion.experiments.free_ports import free_address
from erosion.server.output.observers import Observers
from erosion.server.run.journal import read_journal
from erosion.server.run.run_folder import RunFolder, open_run_folder
from tests.support import programs
from tests.support.federation import small_study, write_site
from tests.support.patience import PATIENCE

processes = multiprocessing.get_context("forkserver")


def die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def coordinate(study: str, folder: str, address: str, phase: str | None) -> None:
    """What `erosion server` does, with a bullet waiting in round 3 of the first arm."""
    from erosion.common.support.logs import configure_logging
    from erosion.server.coordination import coordinator, run_keeper, run_study, strategy
    from erosion.server.link import site_session

    configure_logging(0)
    if phase is not None:
        lay_bullet(phase, coordinator, run_keeper, site_session, strategy)
    parsed = study_from_json(study)
    run = (
        RunFolder(Path(folder)) if Path(folder).exists() else open_run_folder(Path(folder), parsed)
    )
    run_study.run_study(parsed, run, address, Observers({}))


def lay_bullet(
    phase: str, coordinator: Any, run_keeper: Any, site_session: Any, strategy: Any
) -> None:
    def in_round_3(original: Callable[..., Any]) -> Callable[..., Any]:
        def at(self: Any, *arguments: Any, **options: Any) -> Any:
            if self._run.state.round == 2:
                die()
            return original(self, *arguments, **options)

        return at

    arm = strategy.PersonalizedStrategy
    if phase == "before sending":
        arm.configure_train = in_round_3(arm.configure_train)
    elif phase == "between two exchanges":  # of round 2: only a round's later ones come this way
        transport = coordinator.NetworkTransport
        ask, rounds = transport.ask, []

        def ask_or_die(self: Any, requests: Any, seconds: float) -> Any:
            rounds.append(requests)
            return die() if len(rounds) == 2 else ask(self, requests, seconds)

        transport.ask = ask_or_die
    elif phase == "before aggregating":
        arm.aggregate_train = in_round_3(arm.aggregate_train)
    elif phase == "during upload":
        begin, begun = site_session.SiteSession._begin, []

        async def begin_reply(self: Any, body: memoryview) -> None:
            begun.append(body)
            if len(begun) == 3 + 2 * 3 + 2:  # introductions, two rounds, the second of the third
                die()
            await begin(self, body)

        site_session.SiteSession._begin = begin_reply
    elif phase == "between aggregation and journal":
        append = run_keeper.Journal.append
        run_keeper.Journal.append = lambda self, r: die() if r.round == 3 else append(self, r)
    elif phase == "between journal and checkpoint":
        save = checkpoint.save
        vars(checkpoint)["save"] = lambda path, state, **options: (
            die() if state.round == 3 else save(path, state, **options)
        )
    elif phase == "while the checkpoint is written":
        replace = Path.replace
        written: list[Path] = []

        def replace_or_die(self: Path, target: Path) -> Path:
            if Path(target).suffix == ".safetensors":
                written.append(target)
                if len(written) == 3:
                    die()
            return replace(self, target)

        setattr(Path, "replace", replace_or_die)  # noqa: B010 - mypy allows no assignment here
    elif phase == "in bob's part":
        aggregate = arm.aggregate_train
        arm.aggregate_train = lambda self, *given: (
            die()
            if (self._run.study.user, self._run.state.round) == ("bob", 2)
            else aggregate(self, *given)
        )
    elif phase == "during evaluation":
        setattr(study_run.StudyRun, "_evaluate", die)  # noqa: B010 - mypy allows no assignment here
    elif phase == "before the report":
        coordinator.write_report = die
    else:
        raise AssertionError(phase)


def start(program: Callable[..., None], *arguments: object) -> BaseProcess:
    process = processes.Process(target=program, args=arguments, daemon=True)
    process.start()
    return process


def without_times(line: dict[str, Any]) -> dict[str, Any]:
    """A journal line less what no two runs share."""
    hospitals = {
        name: {key: value for key, value in entry.items() if key != "site_seconds"}
        for name, entry in line["hospitals"].items()
    }
    for entry in hospitals.values():
        entry.pop("bytes_received")  # the digits of the seconds travel too,
        entry.pop("bytes_sent")  # and the run's name
    steps = [{"step": step["step"], "asked": sorted(step["hospitals"])} for step in line["steps"]]
    return {**line, "hospitals": hospitals, "steps": steps, "seconds": 0}


def final_params(study: Study, folder: RunFolder, arm: str) -> torch.Tensor:
    model = build_model(study.model, study.task.input_shape, study.task.num_outputs)
    first = one_round.start(study.arms[arm].build(study.build_context), flat_parameters(model))
    state = checkpoint.load(folder.checkpoint(arm), first, arm=arm, study_digest=study.digest)
    assert state.round == study.rounds
    return state.params


PHASES = [
    "before sending",
    "during upload",
    "before aggregating",
    "between aggregation and journal",
    "between journal and checkpoint",
    "while the checkpoint is written",
    "during evaluation",
    "before the report",
]


def test_killed_at_every_phase_and_resumed_is_bit_identical(tmp_path: Path) -> None:
    # scaffold keeps state at the sites, which must not count a repeated round twice.
    study = small_study(
        arms={"weight_erosion": {"distance_penalty": 0.1}, "scaffold": {}}, rounds=4
    )
    text, address = study.canonical_json(), free_address()
    sites = [start(programs.honest, str(write_site(tmp_path, n, address))) for n in study.hospitals]
    try:
        folders = {}
        for phase in [None, *PHASES]:
            folder = tmp_path / "runs" / (phase or "uninterrupted").replace(" ", "-")
            arguments = (text, str(folder), address)
            if phase is not None:
                killed = start(coordinate, *arguments, phase)
                killed.join(PATIENCE)
                assert killed.exitcode == -signal.SIGKILL, phase
            resumed = start(coordinate, *arguments, None)
            resumed.join(PATIENCE)
            assert resumed.exitcode == 0, phase
            folders[phase] = RunFolder(folder)
    finally:
        for site in sites:
            site.kill()
            site.join(PATIENCE)
    uninterrupted = folders.pop(None)
    journal = [without_times(line) for line in read_journal(uninterrupted.journal)]
    assert [line["round"] for line in journal] == [1, 2, 3, 4] * 2
    for phase, run in folders.items():
        assert [without_times(line) for line in read_journal(run.journal)] == journal, phase
        assert run.report.exists()
        for arm in study.arms:
            expected_params = final_params(study, uninterrupted, arm)
            assert torch.equal(final_params(study, run, arm), expected_params), (phase, arm)


def test_killed_between_two_exchanges_and_resumed_is_bit_identical(tmp_path: Path) -> None:
    study = small_study(arms={"fedlin": {"own_parameters": ["output_bias"]}}, rounds=3)
    text, address = study.canonical_json(), free_address()
    sites = [start(programs.honest, str(write_site(tmp_path, n, address))) for n in study.hospitals]
    folders = [tmp_path / "runs" / name for name in ("killed", "uninterrupted")]
    try:
        killed = start(coordinate, text, str(folders[0]), address, "between two exchanges")
        killed.join(PATIENCE)
        assert killed.exitcode == -signal.SIGKILL
        assert [line["round"] for line in read_journal(RunFolder(folders[0]).journal)] == [1]
        for folder in folders:
            finished = start(coordinate, text, str(folder), address, None)
            finished.join(PATIENCE)
            assert finished.exitcode == 0
    finally:
        for site in sites:
            site.kill()
            site.join(PATIENCE)
    resumed, uninterrupted = (RunFolder(folder) for folder in folders)
    lines = [[without_times(x) for x in read_journal(r.journal)] for r in (resumed, uninterrupted)]
    assert lines[0] == lines[1]
    assert [step["step"] for step in lines[0][1]["steps"]] == ["gradient", "train"]
    expected = final_params(study, uninterrupted, "fedlin")
    assert torch.equal(final_params(study, resumed, "fedlin"), expected)


def test_a_run_that_ended_is_not_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = open_run_folder(tmp_path / "run", small_study())
    folder.result.write_text("{}")
    folder.report.write_text("the report is written last")
    assert main(["server", "--resume", str(folder.path), "--insecure"]) == 7
    assert "has ended" in capsys.readouterr().err


def test_a_folder_without_a_run_is_not_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["server", "--resume", str(tmp_path), "--insecure"]) == 7
    assert "is not a run folder" in capsys.readouterr().err
