"""The compose files are valid and keep what they promise."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.docker.field_commands import commands_in, run_in_shell
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


def project(*files: str, folder: Path = ROOT, data: str = "/data") -> dict[str, Any]:
    """The project as Compose understands it in `folder`, with the services of profiles."""
    run = subprocess.run(
        [
            *("docker", "compose", *(word for file in files for word in ("-f", file))),
            *("--profile", "*", "config", "--format", "json"),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, "EROSION_DATA": data},
    )
    assert run.returncode == 0, run.stderr
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def services(*files: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = project(*files)["services"]
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


def test_what_changes_a_sites_keys_has_no_network_and_what_has_one_changes_none() -> None:
    found = services("docker/site.yml")
    assert found["enroll"]["network_mode"] == "none"
    assert not mounts(found["enroll"])["/site"].get("read_only")
    assert mounts(found["enroll"])["/received"]["read_only"] is True
    assert mounts(found["site"])["/site"]["read_only"] is True


@pytest.mark.parametrize("file", IN_THE_FIELD)
def test_the_folders_that_are_mounted_are_those_that_the_comments_make(
    file: str, tmp_path: Path
) -> None:
    shutil.copy(ROOT / file, tmp_path)
    (tmp_path / "study.toml").touch()
    for command in commands_in(file):
        if command.startswith("mkdir"):
            run_in_shell(command.split("&&")[0], tmp_path)
    found = project(Path(file).name, folder=tmp_path)
    sources = {
        volume["source"]
        for service in found["services"].values()
        for volume in service["volumes"]
        if volume["type"] == "bind"
    }
    assert [source for source in sources if not Path(source).exists()] == []
    assert [
        source for source in sources - {"/dev/null"} if tmp_path not in Path(source).parents
    ] == []


def test_a_coordinator_and_a_site_of_one_machine_are_two_projects() -> None:
    assert len({project(file)["name"] for file in IN_THE_FIELD}) == len(IN_THE_FIELD)


def test_the_downloaded_data_may_be_named_by_a_relative_path() -> None:
    found = project("docker-compose.yml", "docker/heart-disease.yml", data="data")
    data = mounts(found["services"]["setup"])["/data"]
    assert (data["type"], data["source"]) == ("bind", str(ROOT / "data"))
    assert data["read_only"] is True
