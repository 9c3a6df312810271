"""The compose files are valid and keep what they promise."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = [
    ["docker-compose.yml"],
    ["docker-compose.yml", "docker/heart-disease.yml"],
    ["docker/coordinator.yml"],
    ["docker/site.yml"],
]


def has_compose() -> bool:
    try:
        run = subprocess.run(["docker", "compose", "version"], capture_output=True, timeout=30)
    except OSError:
        return False
    return run.returncode == 0


@pytest.mark.skipif(not has_compose(), reason="needs Docker's client with Compose v2")
@pytest.mark.parametrize("files", FILES, ids=lambda files: files[-1])
def test_a_compose_file_is_valid(files: list[str]) -> None:
    arguments = [word for file in files for word in ("-f", file)]
    run = subprocess.run(
        ["docker", "compose", *arguments, "config", "--quiet"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "EROSION_DATA": "/data"},
    )
    assert run.returncode == 0, run.stderr
