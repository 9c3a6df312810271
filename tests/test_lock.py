"""The lock file has all that the program requires, each with its hashes."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
REQUIRED = [
    requirement
    for requirement in map(
        Requirement, [*PROJECT["project"]["dependencies"], *PROJECT["build-system"]["requires"]]
    )
    if requirement.name != "torch"  # from an index of its own; the Dockerfile pins it
]
LOCKED = {
    canonicalize_name(name): (version, hashes)
    for name, version, hashes in re.findall(
        r"^([\w.-]+)==(\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)",
        (ROOT / "requirements.lock").read_text(),
        flags=re.MULTILINE,
    )
}


@pytest.mark.parametrize("requirement", REQUIRED, ids=lambda requirement: requirement.name)
def test_a_required_package_is_locked_at_a_version_that_is_allowed(
    requirement: Requirement,
) -> None:
    version, hashes = LOCKED[canonicalize_name(requirement.name)]
    assert requirement.specifier.contains(version), "run: make lock"
    assert hashes


def test_every_locked_package_has_hashes() -> None:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    assert len(LOCKED) == sum("==" in line for line in lines)


def test_the_image_has_the_torch_that_the_project_requires() -> None:
    (torch,) = (
        text for text in PROJECT["project"]["dependencies"] if Requirement(text).name == "torch"
    )
    assert torch in (ROOT / "docker" / "Dockerfile").read_text()
