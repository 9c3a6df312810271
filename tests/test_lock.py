"""The lock file has all that the program requires, each with its hashes."""

import io
import re
import subprocess
import sys
import tarfile
import tomllib
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.support.projects import DEPENDENCIES, EXTRAS, PROJECTS

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FILES = ("requirements.lock", "requirements-dev.lock")
REQUIRED = [
    requirement
    for requirement in map(Requirement, [*DEPENDENCIES, *PROJECT["build-system"]["requires"]])
    if requirement.name != "torch"  # from its own index; the first line of each lock names it
]
OLDEST_PYTHON = PROJECT["project"]["requires-python"].removeprefix(">=").split(",")[0] + ".0"
FOR_CHECKS = [requirement for extra in EXTRAS.values() for requirement in map(Requirement, extra)]


def locked(file: str) -> dict[str, tuple[str, str]]:
    """Version and hashes by name."""
    found = re.findall(
        r"^([\w.-]+)==(\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)",
        (ROOT / file).read_text(),
        flags=re.MULTILINE,
    )
    return {str(canonicalize_name(name)): (version, hashes) for name, version, hashes in found}


IMAGE, CHECKS = locked("requirements.lock"), locked("requirements-dev.lock")


@pytest.mark.parametrize(
    ("required", "packages"), [(REQUIRED, IMAGE), (FOR_CHECKS, CHECKS)], ids=["image", "checks"]
)
def test_what_is_required_is_locked_at_a_version_that_is_allowed(
    required: list[Requirement], packages: dict[str, tuple[str, str]]
) -> None:
    for requirement in required:
        version, _ = packages[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement}: run make lock"


def test_the_checks_run_with_the_versions_of_the_image() -> None:
    assert {name: CHECKS[name][0] for name in IMAGE} == {n: v for n, (v, _) in IMAGE.items()}


@pytest.mark.parametrize("file", FILES)
def test_every_locked_package_has_hashes(file: str) -> None:
    lines = (ROOT / file).read_text().splitlines()
    assert len(locked(file)) == sum("==" in line and line[0].isalnum() for line in lines)


def test_a_locked_package_takes_the_oldest_python_that_the_project_takes() -> None:
    for name, (version, _) in CHECKS.items():
        try:
            package = metadata(name)
        except PackageNotFoundError:  # for another kind of machine
            continue
        assert package["Version"] == version, f"{name}: run make install"
        assert OLDEST_PYTHON in SpecifierSet(str(package.json.get("requires_python", ""))), name


def test_make_and_the_image_install_by_the_hashes() -> None:
    assert "--no-deps --require-hashes -r requirements-dev.lock" in (ROOT / "Makefile").read_text()
    dockerfile = " ".join((ROOT / "docker" / "Dockerfile").read_text().split())
    assert (
        "--no-deps --require-hashes --find-links /wheelhouse \\ -r /requirements.lock" in dockerfile
    )


def test_both_locks_name_one_torch_that_the_project_allows() -> None:
    first = [(ROOT / file).read_text().split()[1] for file in FILES]
    assert first[0] == first[1]
    name, version = first[0].split("==")
    (torch,) = (found for found in map(Requirement, DEPENDENCIES) if found.name == "torch")
    assert name == "torch"
    assert torch.specifier.contains(version)


def test_the_image_takes_extras_by_the_hashes_of_the_checks() -> None:
    """uv, unlike pip, holds what it resolves against the hashes of its constraints."""
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text()
    assert '--constraint /requirements-dev.lock "$@"' in dockerfile
    assert "uv" in IMAGE


@pytest.mark.parametrize("file", ["docker/Dockerfile", "docker/site.yml", "docs/data-sources.md"])
def test_an_extra_that_a_text_builds_into_the_image_is_one(file: str) -> None:
    named = re.findall(r"EXTRAS=([\w,]+)", (ROOT / file).read_text())
    assert named
    assert set(",".join(named).split(",")) <= EXTRAS.keys()


def test_what_the_image_copies_is_not_ignored() -> None:
    lines = (ROOT / "docker" / "Dockerfile").read_text().splitlines()
    copied = [line.split()[1:-1] for line in lines if re.match(r"COPY (?!--)", line)]
    ignored_but = (ROOT / ".dockerignore").read_text().splitlines()
    names = [name.rstrip("/") for names in copied for name in names]
    assert "requirements.lock" in names
    assert [name for name in names if f"!{name}" not in ignored_but] == []


def test_the_packages_take_their_version_from_the_tag_in_one_way() -> None:
    ways = [
        (project["build-system"], project["project"]["dynamic"], project["tool"]["setuptools_scm"])
        for project in PROJECTS.values()
    ]
    assert ways == [ways[0]] * 4
    assert ways[0][1] == ["version"]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is a copy without git")
def test_a_copy_without_git_has_one_version(tmp_path: Path) -> None:
    packed = subprocess.run(
        ["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(tmp_path, filter="data")
    said = [
        subprocess.run(
            [sys.executable, "-m", "setuptools_scm"], cwd=tmp_path / name, capture_output=True
        ).stdout.split()
        for name in PROJECTS
    ]
    assert said == [[b"0.0.0"]] * 4


def test_the_packages_require_the_same_of_others() -> None:
    found: dict[str, set[str]] = {}
    for requirement in map(Requirement, DEPENDENCIES):
        found.setdefault(requirement.name, set()).add(str(requirement.specifier))
    assert {name: len(ranges) for name, ranges in found.items() if len(ranges) > 1} == {}
