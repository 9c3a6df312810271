"""A sealed study in containers, with the keys and certificates that an enrolment made."""

import json

import pytest

from erosion_common.sealed.phases import DISTANCE, MASKED, UNMASK
from erosion_server.run.journal import read_journal
from tests.support.docker_engine import BUILD_SECONDS, RUN_SECONDS, docker, runs
from tests.support.patience import PATIENCE

PROJECT = "erosion-test-sealed"

pytestmark = [pytest.mark.docker, pytest.mark.timeout(2 * BUILD_SECONDS)]


def compose(*arguments: str, timeout: float = PATIENCE) -> str:
    project = ("--project-name", PROJECT)
    return docker("compose", *project, *arguments, timeout=timeout, EROSION_STUDY="sealed")


def test_five_hospitals_in_containers_run_a_sealed_study(engine: None) -> None:
    del engine
    compose("down", "--volumes", "--remove-orphans")
    compose("build", "setup", timeout=BUILD_SECONDS)
    before = runs()
    try:
        compose("up", "--no-build", timeout=RUN_SECONDS)
        (run,) = runs() - before
        states = [json.loads(line) for line in compose("ps", "-a", "--format", "json").splitlines()]
        assert {state["ExitCode"] for state in states} == {0}
    finally:
        compose("down", "--volumes", "--remove-orphans")
    result = json.loads((run / "result.json").read_text())
    assert set(result["arms"]) == {"weight_erosion", "local"}
    assert result["comparison"]["arm"] == "weight_erosion"
    records = [r for r in read_journal(run / "rounds.jsonl") if r["arm"] == "weight_erosion"]
    assert {record["outcome"] for record in records} == {"done"}
    for record in records:
        steps = [step["step"] for step in record["steps"]]
        assert steps == ["train", DISTANCE, MASKED, UNMASK]
