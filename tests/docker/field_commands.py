"""The commands that the comments of the compose files for the field say."""

import subprocess
from pathlib import Path

from tests.support.docker_engine import ROOT
from tests.support.patience import PATIENCE


def commands_in(file: str) -> list[str]:
    """The commands of a compose file's comments, in their order."""
    lines = (ROOT / file).read_text().splitlines()
    return [line[1:].split(" # ")[0].strip() for line in lines if line.startswith("#   ")]


def run_in_shell(command: str, folder: Path) -> None:
    """Run a command in `folder`."""
    subprocess.run(["sh", "-ec", command], cwd=folder, check=True, timeout=PATIENCE)
