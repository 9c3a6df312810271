"""Docker and Compose for the tests that need a real engine."""

import os
import shutil
import subprocess
from pathlib import Path

from tests.support.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
IMAGE = "erosion-test"

BUILD_SECONDS = RUN_SECONDS = 3600.0  # on a machine that does much else


def why_no_compose() -> str | None:
    """The reason why Compose files cannot be read here; None if they can be."""
    if shutil.which("docker") is None:
        return "Docker's client (`docker`) is not installed"
    if _asks("compose", "version") is not None:
        return "Docker's client has no Compose v2 plugin (`docker compose version` fails)"
    return None


def why_no_engine() -> str | None:
    """The reason why no containers can be run here; None if they can be."""
    if (reason := why_no_compose()) is not None:
        return reason
    if (reason := _asks("info", "--format", "{{.ID}}")) is not None:
        return f"no Docker engine answers: {reason}"
    return None


def docker(
    *arguments: str, timeout: float = PATIENCE, check: bool = True, **environment: str
) -> str:
    """Run docker in the project's folder; its output. Raises AssertionError with all it said."""
    run = subprocess.run(
        ["docker", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "EROSION_IMAGE": IMAGE, **environment},
    )
    if check and run.returncode:
        raise AssertionError(f"docker {' '.join(arguments)}\n{run.stdout}\n{run.stderr}")
    return run.stdout


def runs() -> set[Path]:
    """The run folders on the host."""
    return set((ROOT / "runs").glob("2*"))


def _asks(*arguments: str) -> str | None:
    """The last line of what docker says against it; None if it says nothing."""
    run = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=PATIENCE)
    if run.returncode == 0:
        return None
    return (run.stderr.strip().splitlines() or ["it says nothing"])[-1]
