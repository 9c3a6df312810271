"""The README's files, commands and claims exist and work as written."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from erosion_client.site_file import load_site
from erosion_common.algorithms import catalogue
from erosion_common.program.command_line import parser
from tests.support.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
COMMANDS = [
    line.split("#")[0].strip()
    for block in re.findall(r"```sh\n(.*?)```", README, flags=re.DOTALL)
    for line in block.splitlines()
    if line.strip()
]


def test_every_file_that_is_linked_exists() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith(".venv/bin/erosion")])
def test_every_erosion_command_is_understood(command: str) -> None:
    options = parser().parse_args(shlex.split(command)[1:])
    assert callable(options.handler)


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("make")])
def test_every_make_target_exists(command: str) -> None:
    run = subprocess.run(
        ["make", "--dry-run", *shlex.split(command)[1:]],
        cwd=ROOT,
        capture_output=True,
        timeout=PATIENCE,
    )
    assert run.returncode == 0


def test_the_documented_algorithms_are_those_that_there_are() -> None:
    page = (ROOT / "docs" / "algorithms.md").read_text()
    assert page.endswith(catalogue() + "\n")


def test_the_site_file_of_the_readme_is_valid(tmp_path: Path) -> None:
    (block,) = re.findall(r"```toml\n(# SITE.toml.*?)```", README, flags=re.DOTALL)
    path = tmp_path / "site.toml"
    path.write_text(block)
    assert load_site(path).limits.min_patients == 20
