"""A coordinator killed at any moment and resumed: its files, with hospitals that follow a script.

Real sites and the line are in tests/e2e/test_resume.py.
"""

import signal
from pathlib import Path

import pytest

from erosion.command_line import main
from erosion.common.study.study import Study
from erosion.server.run.journal import read_journal
from erosion.server.run.run_folder import RunFolder, open_run_folder
from tests.support.killed_coordinator import BULLETS, conduct, same_run
from tests.support.patience import PATIENCE
from tests.support.processes import start
from tests.support.small_study import make_study


def small_study() -> Study:
    return make_study(
        hospitals=["a", "b", "c"],
        rounds=4,
        arms={
            "weight_erosion": {"distance_penalty": 0.01},
            "bias_correction": {"server_optimizer": "momentum"},
        },
    )


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = open_run_folder(tmp_path_factory.mktemp("runs") / "whole", small_study())
    conduct(small_study().canonical_json(), str(folder.path), None)
    return folder


def test_the_rounds_depend_on_each_other(uninterrupted: RunFolder) -> None:
    lines = list(read_journal(uninterrupted.journal))
    assert [line["round"] for line in lines] == [1, 2, 3, 4] * 2
    weights = [line["hospitals"]["c"]["weight_after"] for line in lines[:4]]
    assert len(set(weights)) == 4


@pytest.mark.parametrize("phase", BULLETS)
def test_killed_at_any_moment_and_resumed_is_bit_identical(
    tmp_path: Path, uninterrupted: RunFolder, phase: str
) -> None:
    study = small_study()
    text, folder = study.canonical_json(), open_run_folder(tmp_path / "run", study)
    killed = start(conduct, text, str(folder.path), phase)
    killed.join(PATIENCE)
    assert killed.exitcode == -signal.SIGKILL
    assert not folder.has_ended
    conduct(text, str(folder.path), None)
    assert same_run(study, folder, uninterrupted)


def test_a_run_that_ended_is_not_resumed(
    uninterrupted: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["server", "--resume", str(uninterrupted.path), "--insecure"]) == 7
    assert "has ended" in capsys.readouterr().err


def test_a_folder_without_a_run_is_not_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["server", "--resume", str(tmp_path), "--insecure"]) == 7
    assert "is not a run folder" in capsys.readouterr().err
