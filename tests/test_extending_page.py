"""What docs/extending.md adds, put into a copy of the program, holds the program's contracts."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.extending_page import SECTIONS, first_example

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("client", "common", "docs", "erosion", "experiments", "server", "tests")
CONTRACTS = (
    *(f"tests/common/test_{of}_contract.py" for of in ("algorithm", "exchanges", "site", "tasks")),
    "tests/server/test_outputs.py",
)


@dataclass(frozen=True)
class Line:
    """What a file gets, behind the text that it has already."""

    file: str
    behind: str
    text: str


@dataclass(frozen=True)
class Addition:
    """One section's example, as a developer follows it."""

    section: str
    file: str
    lines: Sequence[Line]
    name: str  # in the parameters of the contract tests


def method(section: str, name: str, class_name: str) -> Addition:
    registry = "common/algorithms/__init__.py"
    made_by = f"from erosion.common.algorithms.{name} import {class_name}\n"
    lines = (
        Line(registry, "from pydantic import Field\n", made_by),
        Line(registry, "    | PersonalGems\n", f"    | {class_name}\n"),
    )
    return Addition(section, f"common/algorithms/{name}.py", lines, name)


ADDITIONS = (
    method("A method", "nearest_peer", "NearestPeer"),
    method("A method with two exchanges", "median_length", "MedianLength"),
    Addition(
        "A task",
        "common/tasks/counts.py",
        (
            Line(
                "common/tasks/__init__.py",
                "from erosion.common.tasks.task import Task\n",
                "from erosion.common.tasks.counts import Counts\n",
            ),
            Line("common/tasks/__init__.py", "    Survival,\n", "    Counts,\n"),
            Line(
                "tests/support/task_examples.py",
                "EXAMPLES: Mapping[str, Mapping[str, Any]] = {\n",
                '    "counts": {"target": "y", "usual": 4.0, "most": 30},\n',
            ),
        ),
        "[counts]",
    ),
    Addition(
        "An output",
        "server/output/latest.py",
        (
            Line(
                "server/output/registry.py",
                "OUTPUTS: Mapping[str, Output] = {\n",
                '    "latest": Output("latest", "the round that was finished last"),\n',
            ),
        ),
        "[latest]",
    ),
)


def test_examples_of_the_extending_page_hold_the_contracts(tmp_path: Path) -> None:
    """Those that are about them, and those about all that are registered."""
    for part in PARTS:
        passed_over = shutil.ignore_patterns("__pycache__", "results")
        shutil.copytree(ROOT / part, tmp_path / part, symlinks=True, ignore=passed_over)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for added in ADDITIONS:
        (tmp_path / added.file).write_text(first_example(added.section))
        for line in added.lines:
            registry = tmp_path / line.file
            before = registry.read_text()
            assert line.behind in before
            registry.write_text(before.replace(line.behind, line.behind + line.text, 1))
    wanted = " or ".join([*(added.name for added in ADDITIONS), "every_method", "registered"])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-k", wanted, *CONTRACTS],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(added.name in done.stdout for added in ADDITIONS)


def test_whatever_has_a_contract_is_held_against_it() -> None:
    without_one = {"A model", "A source of patients", "A command"}
    assert {added.section for added in ADDITIONS} == {title for title, _ in SECTIONS} - without_one
