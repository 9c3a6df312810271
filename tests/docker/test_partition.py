"""A hospital's container is cut off the network and put back, while the study runs."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.docker_engine import ROOT, docker, runs
from tests.support.patience import wait_until

PROJECT = "erosion-partition"
FILES = ("-f", "docker-compose.yml", "-f", "tests/docker/partition.yml")
BUILD_SECONDS = 3600.0  # on a machine that does much else
HOSPITAL = "alike"  # the second hospital of the study, so the service hospital-2

pytestmark = [pytest.mark.docker, pytest.mark.timeout(2 * BUILD_SECONDS)]


@pytest.fixture
def journal(engine: None, tmp_path: Path) -> Iterator[Path]:
    """The journal of a running testbed with far more rounds than the test takes."""
    del engine
    default = (ROOT / "erosion" / "studies" / "breast-cancer.toml").read_text()
    study = tmp_path / "long.toml"
    text = default.replace("rounds = 30", "rounds = 100000")
    # Long enough for any machine, and longer than it takes to notice a connection that is dead.
    text = text.replace("round_deadline_seconds = 30", "round_deadline_seconds = 60")
    # Nobody is eroded, so that the hospital is asked throughout.
    study.write_text(text.replace('preset = "recommended" ', "distance_penalty = 0.0 "))
    study.chmod(0o644)

    def compose(*arguments: str) -> str:
        return docker("compose", "-p", PROJECT, *FILES, *arguments, LONG_STUDY=str(study))

    compose("down", "--volumes", "--remove-orphans")
    docker("compose", "-p", "erosion-test", "build", "setup", timeout=BUILD_SECONDS)
    before = runs()
    try:
        compose("up", "--no-build", "--detach")
        wait_until(lambda: any((run / "rounds.jsonl").exists() for run in runs() - before))
        (run,) = runs() - before
        yield run / "rounds.jsonl"
    finally:
        compose("down", "--volumes", "--remove-orphans", "--timeout", "5")


def outcomes(journal: Path) -> list[tuple[str, str]]:
    """Of every round so far: the round's outcome and the hospital's."""
    lines = [json.loads(line) for line in journal.read_text().splitlines(keepends=True)[:-1]]
    return [(line["outcome"], line["hospitals"][HOSPITAL]["outcome"]) for line in lines]


def test_a_partition_costs_no_round_and_heals(journal: Path) -> None:
    network, container = f"{PROJECT}_federation", f"{PROJECT}-hospital-2-1"
    wait_until(lambda: len(outcomes(journal)) > 5)
    docker("network", "disconnect", network, container)
    wait_until(lambda: outcomes(journal)[-3:] == [("done", "absent")] * 3)
    # A container that is put back has lost its service's name unless it is given again.
    docker("network", "connect", "--alias", "hospital-2", network, container)
    wait_until(lambda: outcomes(journal)[-1] == ("done", "accepted"))
    assert {outcome for outcome, _ in outcomes(journal)} == {"done"}
