"""The compose testbed, and a sealed study, on a real Docker engine: `make test-docker`."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from erosion_common.sealed.phases import DISTANCE, MASKED, UNMASK
from erosion_server.run.journal import read_journal
from tests.support.docker_engine import BUILD_SECONDS, RUN_SECONDS, docker, runs
from tests.support.patience import PATIENCE

PROJECT = "erosion-test"
LARGEST_IMAGE = 1.2e9  # bytes

pytestmark = [pytest.mark.docker, pytest.mark.timeout(2 * BUILD_SECONDS)]


def compose(*arguments: str, timeout: float = PATIENCE, **environment: str) -> str:
    command = ("compose", "--project-name", PROJECT, *arguments)
    return docker(*command, timeout=timeout, check=True, **environment)


def states() -> dict[str, int]:
    """The exit codes of the project's containers, by service."""
    found = [json.loads(line) for line in compose("ps", "-a", "--format", "json").splitlines()]
    return {state["Service"]: state["ExitCode"] for state in found}


@contextmanager
def finished(**environment: str) -> Iterator[Path]:
    """The folder of a run that `docker compose up` made, from building the image on."""
    compose("down", "--volumes", "--remove-orphans")
    compose("build", "setup", timeout=BUILD_SECONDS)
    before = runs()
    try:
        compose("up", "--no-build", timeout=RUN_SECONDS, **environment)
        (run,) = runs() - before
        yield run
    finally:
        compose("down", "--volumes", "--remove-orphans")


@pytest.fixture(scope="module")
def finished_testbed(engine: None) -> Iterator[Path]:
    del engine
    with finished() as run:
        yield run


def test_the_report_is_on_the_host(finished_testbed: Path) -> None:
    result = json.loads((finished_testbed / "result.json").read_text())
    assert result["user"] == "home"
    assert set(result["arms"]) == {"weight_erosion", "fedavg", "local"}
    assert "<html" in (finished_testbed / "report.html").read_text()


def test_every_container_ended_well(finished_testbed: Path) -> None:
    del finished_testbed
    assert states() == dict.fromkeys(
        ["setup", "coordinator", "user", *(f"hospital-{n}" for n in range(2, 6))], 0
    )


def test_the_containers_are_not_root_and_their_root_is_read_only(finished_testbed: Path) -> None:
    del finished_testbed
    for service in ("coordinator", "user"):
        inspected = json.loads(docker("inspect", f"{PROJECT}-{service}-1"))[0]
        assert inspected["Config"]["User"] == "10001:10001"
        assert inspected["HostConfig"]["ReadonlyRootfs"] is True
        assert inspected["HostConfig"]["CapDrop"] == ["ALL"]
        assert "Healthcheck" in inspected["Config"]


def test_every_volume_of_a_hospital_is_mounted_by_it_alone(finished_testbed: Path) -> None:
    del finished_testbed
    users: dict[str, set[str]] = {}
    for name in docker("ps", "-a", "--filter", f"name={PROJECT}", "--format", "{{.Names}}").split():
        for mount in json.loads(docker("inspect", name))[0]["Mounts"]:
            if mount["Type"] == "volume":
                users.setdefault(mount["Name"], set()).add(name)
    setup = f"{PROJECT}-setup-1"
    for volume, containers in users.items():
        assert len(containers - {setup}) == 1, volume


def test_the_network_leads_nowhere_else(finished_testbed: Path) -> None:
    del finished_testbed
    network = json.loads(docker("network", "inspect", f"{PROJECT}_federation"))[0]
    assert network["Internal"] is True


def test_the_image_is_small_and_has_no_build_tools(finished_testbed: Path) -> None:
    del finished_testbed
    image = json.loads(docker("image", "inspect", "erosion-test"))[0]
    assert image["Size"] < LARGEST_IMAGE
    for tool in ("pip", "gcc", "make"):
        found = docker(
            "run", "--rm", "--entrypoint", "sh", "erosion-test", "-c", f"command -v {tool} || true"
        )
        assert found == "" or not found.startswith("/opt/erosion"), found


def test_five_hospitals_in_containers_run_a_sealed_study(engine: None) -> None:
    """With the keys and certificates that an enrolment made; after all that look at the testbed."""
    del engine
    with finished(EROSION_STUDY="sealed") as run:
        assert set(states().values()) == {0}
    result = json.loads((run / "result.json").read_text())
    assert set(result["arms"]) == {"weight_erosion", "local"}
    assert result["comparison"]["arm"] == "weight_erosion"
    records = [r for r in read_journal(run / "rounds.jsonl") if r["arm"] == "weight_erosion"]
    assert {record["outcome"] for record in records} == {"done"}
    for record in records:
        steps = [step["step"] for step in record["steps"]]
        assert steps == ["train", DISTANCE, MASKED, UNMASK]
