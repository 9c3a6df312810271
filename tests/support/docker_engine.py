"""Docker and Compose for the tests that need a real engine."""

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
IMAGE = "erosion-test"


def docker(*arguments: str, timeout: float = 300, check: bool = True, **environment: str) -> str:
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
