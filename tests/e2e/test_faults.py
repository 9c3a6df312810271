"""The cheap rows of the fault table; `python -m experiments.faults` does them all."""

from pathlib import Path

import pytest

from erosion.experiments.faults import scenes, table
from erosion.experiments.faults.network import why_no_networks
from erosion.experiments.faults.row import Row
from erosion.experiments.faults.scenes import SCENES
from erosion.experiments.two_machines import deploy

NO_NETWORKS = why_no_networks()
needs_networks = pytest.mark.skipif(NO_NETWORKS is not None, reason=NO_NETWORKS or "")


def play(name: str, folder: Path) -> Row:
    return scenes.play(SCENES[name], folder)


def test_a_site_killed_in_a_round_and_started_again_costs_nobody_a_round(tmp_path: Path) -> None:
    row = play("killed-training", tmp_path)
    assert row.rounds_lost == 0
    assert row.seconds_to_recover is not None
    assert any("bob lost its connection" in line for line in row.coordinator_says)
    assert any("bob joined" in line for line in row.coordinator_says)


def test_a_full_disk_is_said_in_one_sentence_and_the_run_goes_on_once_there_is_room(
    tmp_path: Path,
) -> None:
    if not why_no_networks():
        pytest.skip("no disk can be mounted here")
    row = play("disk-full", tmp_path)
    (said,) = [line for line in row.coordinator_says if line.startswith("erosion: ")]
    assert "No space left" in said
    assert "--resume" in said
    assert row.rounds_lost == 0


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
    run = deploy(tmp_path)
    assert (run / "result.json").exists()


def test_the_table_shows_every_row_and_what_people_see() -> None:
    row = Row("site struck", ("bob lost its connection",), (), (), 0, 3, 0.25, 4.0)
    text = table.markdown({"struck": {**row.as_json(), "commit": "abc"}})
    assert "| site struck | 0 | 3 | 0.2 s | 4.0 s |" in text
    assert "bob lost its connection" in text
    assert text.endswith("Made at commit abc.\n")
