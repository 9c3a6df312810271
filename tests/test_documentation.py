"""The documentation's examples run, and its links within the repository lead somewhere."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from erosion_client.site_file import load_site
from erosion_common.learning.training import Training
from erosion_common.study import privacy, sealing
from erosion_common.study.study import load_study
from tests.support.extending_page import (
    method_with_two_exchanges,
)

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]


@pytest.mark.parametrize("promises", [{}, {"sums_only": True, "private_updates": True}], ids=str)
def test_the_method_with_two_exchanges_has_neither_privacy_nor_sealed_rounds(
    promises: dict[str, bool],
) -> None:
    """Nor has it where its flags say so, as those that it would inherit do."""
    arms = {"median_length": type("Promising", (method_with_two_exchanges(),), promises)()}
    assert "more than noised updates" in (privacy.problem_with_arms(arms) or "")
    problem = sealing.problem_with_arms(arms, Training(steps=1))
    assert problem == (
        "arms.median_length: it asks for more than updates, which would leave in the clear"
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    links = re.findall(r"\]\(([^)#:]+)\)", text)
    # A path in code, unless it holds a NAME to be filled in or belongs to a site or a run.
    paths = [
        path
        for path in re.findall(
            r"`((?:common|client|server|erosion|experiments|tests|docs)/[^ `*]+)`", text
        )
        if "NAME" not in path
    ]
    assert [path for path in (*links, *paths) if not (ROOT / path).exists()] == []


needs_git = pytest.mark.skipif(
    shutil.which("git") is None or not (ROOT / ".git").exists(),
    reason="needs git and a checkout: an archive does not say which files are the project's",
)


def committed_texts() -> dict[str, str]:
    """The text of every file that git tracks and that is one, by its path."""
    command = ("git", "-C", str(ROOT), "ls-files", "-z")
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
    found = {}
    for path in (ROOT / name for name in names if name):
        content = path.read_bytes() if path.is_file() else b""
        if b"\0" not in content:
            found[str(path.relative_to(ROOT))] = content.decode("utf-8")
    return found


# A path of the machine that a text was written on.
SOMEBODYS_FOLDER = re.compile(r"(?<![\w.:/-])/(?:work|root|home/\w+)\b")


@needs_git
def test_no_file_names_a_folder_of_the_machine_that_it_was_written_on() -> None:
    texts = committed_texts()
    assert "experiments/results/splits.json" in texts
    found = {path: SOMEBODYS_FOLDER.findall(text) for path, text in texts.items()}
    assert {path: places for path, places in found.items() if places} == {}


# Bare, the name is another program's on PyPI.
BY_NAME = re.compile(r"""pip install\b[^\n`]*?[\s"'\\]erosion(?:\[|[\s"'`\\.,]|$)""", re.MULTILINE)


@needs_git
def test_no_text_installs_by_the_name_that_somebody_else_has() -> None:
    found = {path: BY_NAME.findall(text) for path, text in committed_texts().items()}
    assert {path: commands for path, commands in found.items() if commands} == {}


def toml_of(page: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text()
    return re.findall(r"```toml\n(.*?)```", text, flags=re.DOTALL)


@pytest.mark.parametrize("number", range(len(toml_of("sources.md"))))
def test_a_file_of_the_page_about_sources_is_valid_as_written(tmp_path: Path, number: int) -> None:
    path = tmp_path / "file.toml"
    path.write_text(toml_of("sources.md")[number])
    if "[coordinator]" in path.read_text():
        site = load_site(path)
        assert site.data.check()
    else:
        study = load_study(path)
        assert study.comparison is not None
        assert study.comparison[0] == "weight_erosion"
        assert study.comparison[1][0] == "local"
