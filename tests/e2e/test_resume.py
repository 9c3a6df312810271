"""A coordinator killed at any moment and resumed ends where an uninterrupted one does."""

import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from erosion.command_line import main
from erosion.common.learning.models import build_model, flat_parameters
from erosion.common.rounds import checkpoint, one_round
from erosion.common.study.study import Study
from erosion.experiments.free_ports import free_address
from erosion.server.run.journal import read_journal
from erosion.server.run.run_folder import RunFolder, open_run_folder
from tests.support import programs
from tests.support.federation import small_study, write_site
from tests.support.killed_coordinator import coordinate, start
from tests.support.patience import PATIENCE


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
    network = {"model": {"name": "mlp", "hidden": [6]}, "rounds": 1}
    studies = {  # and which rounds the journal has when the coordinator is killed
        "fedlin": (
            small_study(arms={"fedlin": {"own_parameters": ["output_bias"]}}, rounds=3),
            [1],
        ),
        "network_gems": (small_study(arms={"network_gems": {"clusters": 4}}, **network), []),
    }
    address = free_address()
    names = studies["fedlin"][0].hospitals
    sites = [start(programs.honest, str(write_site(tmp_path, n, address))) for n in names]
    runs = tmp_path / "runs"
    try:
        for arm, (study, done) in studies.items():
            text = study.canonical_json()
            killed = start(coordinate, text, str(runs / arm), address, "between two exchanges")
            killed.join(PATIENCE)
            assert killed.exitcode == -signal.SIGKILL, arm
            lines = read_journal(RunFolder(runs / arm).journal)
            assert [line["round"] for line in lines] == done
            for name in (arm, f"{arm}-uninterrupted"):
                finished = start(coordinate, text, str(runs / name), address, None)
                finished.join(PATIENCE)
                assert finished.exitcode == 0, name
    finally:
        for site in sites:
            site.kill()
            site.join(PATIENCE)
    steps = {"fedlin": ["gradient", "train"], "network_gems": ["neurons", "output", "check"]}
    for arm, (study, done) in studies.items():
        both = [RunFolder(runs / name) for name in (arm, f"{arm}-uninterrupted")]
        journals = [[without_times(line) for line in read_journal(r.journal)] for r in both]
        assert journals[0] == journals[1]
        assert [step["step"] for step in journals[0][len(done)]["steps"]] == steps[arm]
        resumed, uninterrupted = (final_params(study, run, arm) for run in both)
        assert torch.equal(resumed, uninterrupted), arm


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
