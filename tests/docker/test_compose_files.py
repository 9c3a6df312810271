"""The compose files are valid and keep what they promise."""

import json
import os
import subprocess
from typing import Any

import pytest

from tests.support.docker_engine import ROOT
from tests.support.patience import PATIENCE

FILES = [
    ["docker-compose.yml"],
    ["docker-compose.yml", "docker/heart-disease.yml"],
    ["docker/coordinator.yml"],
    ["docker/site.yml"],
]
IN_THE_FIELD = ["docker/coordinator.yml", "docker/site.yml"]

pytestmark = pytest.mark.usefixtures("compose_client")


def services(*files: str) -> dict[str, dict[str, Any]]:
    """Every service as Compose understands it, those of profiles too."""
    run = subprocess.run(
        [
            *("docker", "compose", *(word for file in files for word in ("-f", file))),
            *("--profile", "*", "config", "--format", "json"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, "EROSION_DATA": "/data"},
    )
    assert run.returncode == 0, run.stderr
    found: dict[str, dict[str, Any]] = json.loads(run.stdout)["services"]
    return found


def mounts(service: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {volume["target"]: volume for volume in service["volumes"]}


@pytest.mark.parametrize("files", FILES, ids=lambda files: files[-1])
def test_a_compose_file_is_valid_and_its_services_are_confined(files: list[str]) -> None:
    for name, service in services(*files).items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert "no-new-privileges:true" in service["security_opt"], name
        assert int(service["mem_limit"]) > 0, name
        assert service["pids_limit"] > 0, name
        assert service["logging"]["options"]["max-size"], name


def test_the_coordinator_sees_neither_the_authoritys_key_nor_the_sites() -> None:
    found = services("docker/coordinator.yml")
    seen = mounts(found["coordinator"])
    assert seen["/srv/federation"]["read_only"] is True
    assert seen["/srv/federation/ca.key"]["source"] == "/dev/null"
    assert seen["/srv/federation/kits"]["type"] == "tmpfs"
    assert found["enroll"]["network_mode"] == "none"  # which does see them


def test_a_site_can_write_its_records_and_its_state_only() -> None:
    seen = mounts(services("docker/site.yml")["site"])
    writable = {target for target, volume in seen.items() if not volume.get("read_only")}
    assert writable == {"/site/records", "/site/state"}
