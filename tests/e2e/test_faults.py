"""The cheap rows of the fault table; `python -m experiments.faults` does them all."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from experiments.faults import page, scenes
from experiments.faults.network import why_no_networks, why_no_small_disk
from experiments.faults.scenes import SCENES
from experiments.faults.stage import Observation, Row, Stage, small_study
from experiments.faults.stepped_clock import SteppedClock, why_no_steps
from experiments.hostile_load.attackers import BY_A_SITE, BY_STRANGERS
from experiments.two_machines import deploy
from tests.support.forked import Forked, ForkedMachine

NO_NETWORKS = why_no_networks()
NO_DISK = why_no_small_disk()
needs_networks = pytest.mark.skipif(NO_NETWORKS is not None, reason=NO_NETWORKS or "")


# A round is over long before its deadline, also on a machine that is slow and has much else to do.
SHORT_ROUNDS = {"training": {"steps": 300, "batch_size": 16, "learning_rate": 0.1}}
# For what happens to the coordinator: no round has to end without a hospital.
TWO = {
    "hospitals": ("alice", "bob"),
    "federation": {"round_deadline_seconds": 20.0, "join_deadline_seconds": 120.0},
}


def play(name: str, folder: Path, **changes: Any) -> Row:
    return scenes.play(SCENES[name], folder, program=Forked, **SHORT_ROUNDS, **changes)


@pytest.mark.skipif(NO_DISK is not None, reason=NO_DISK or "")
def test_a_full_disk_is_said_in_one_sentence_and_the_run_goes_on_once_there_is_room(
    tmp_path: Path,
) -> None:
    row = play("disk-full", tmp_path, **TWO)
    (said,) = [line for line in row.coordinator_says if line.startswith("erosion: ")]
    assert "No space left" in said
    assert "--resume" in said
    assert row.rounds_lost == 0


@pytest.mark.skipif(why_no_steps() is not None, reason=why_no_steps() or "")
def test_a_coordinator_that_slept_and_whose_clock_was_set_loses_no_more_than_a_round(
    tmp_path: Path,
) -> None:
    """Both at once, and longer than the line's every deadline, to save time."""
    with Stage(tmp_path, small_study(**SHORT_ROUNDS, **TWO), program=Forked) as stage:
        clock = stage.clocks["coordinator"] = SteppedClock(tmp_path)
        coordinator = stage.begin()["coordinator"]
        seen = Observation(stage, "coordinator frozen")
        clock.step(-300)
        stage.wait_for_rounds(len(stage.rounds) + 3)
        coordinator.freeze()
        time.sleep(32)
        clock.step(300)
        coordinator.thaw()
        seen.repaired()
        seen.wait_until_back()
        stage.wait_for_rounds(len(stage.rounds) + 3)
        row = seen.row()
    assert row.rounds_lost <= 1
    assert not [line for line in row.coordinator_says if line.startswith("erosion: ")]


@pytest.mark.skipif(why_no_steps() is not None, reason=why_no_steps() or "")
@pytest.mark.parametrize(
    ("machine", "days", "restarts", "named"),
    [
        ("coordinator", 400, False, "400 days behind|36[45] days ahead of this one"),
        ("coordinator", -400, True, "days ahead of this one"),
        ("bob", 400, True, "expired on"),
        ("bob", -400, True, "days too early"),
    ],
)
def test_a_clock_a_year_off_ends_no_site_and_is_named(
    machine: str, days: int, restarts: bool, named: str, tmp_path: Path
) -> None:
    def trouble() -> str:
        path = tmp_path / "bob" / "records" / "bob" / "status.json"
        return str(json.loads(path.read_text())["trouble"])

    with Stage(tmp_path, small_study(**SHORT_ROUNDS, **TWO), program=Forked) as stage:
        clock = stage.clocks[machine] = SteppedClock(tmp_path)
        stage.begin()
        clock.step(days * 86_400)
        if restarts:
            stage.programs[machine].kill()
            stage.coordinator(resume=True) if machine == "coordinator" else stage.site(machine)
        stage.wait(lambda: re.search(named, trouble()))
        assert "NTP" in trouble()
        done = len(stage.journal())
        clock.step(0)
        stage.wait(lambda: len(stage.journal()) > done + 2)
        assert [each.exit_code for each in stage.programs.values()] == [None] * 3


@needs_networks
def test_a_line_that_was_cut_costs_the_site_its_rounds_and_nobody_else_theirs(
    tmp_path: Path,
) -> None:
    row = play("line-cut-briefly", tmp_path)
    assert row.rounds_lost == 0
    assert row.seconds_to_recover is not None


@needs_networks
def test_the_readmes_deployment_works_word_for_word_on_machines_of_their_own(
    tmp_path: Path,
) -> None:
    run = deploy(tmp_path, ForkedMachine)
    assert (run / "result.json").exists()


def test_the_page_is_made_of_the_rows_that_were_measured() -> None:
    results = page.RESULTS
    rows = page.read(results / "faults.json"), page.read(results / "hostile_load.json")
    assert page.PAGE.read_text() == page.markdown(*rows)
    assert list(rows[0]) == list(SCENES)
    assert list(rows[1]) == [*BY_STRANGERS, *BY_A_SITE]
