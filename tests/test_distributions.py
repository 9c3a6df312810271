"""Each distribution runs with what it requires and without the others of ours."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[1]
HOSPITAL, COORDINATOR = ("common", "client"), ("common", "server")
IMPORT_ALL = """
import importlib, pkgutil
for name in {packages}:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, name + "."):
        importlib.import_module(module.name)
"""
COMMAND = "from erosion_common.program.command_line import main; sys.exit(main({arguments}))"


def run_with(folders: tuple[str, ...], program: str) -> "subprocess.CompletedProcess[str]":
    """Run a program for which the other folders of this checkout are not there."""
    ours = [str(ROOT / folder) for folder in ("common", "client", "server")]
    kept = [str(ROOT / folder) for folder in folders]
    start = f"import sys; sys.path = [p for p in sys.path if p not in {[str(ROOT), '', *ours]}]"
    return subprocess.run(
        [sys.executable, "-c", f"{start} + {kept}\n{program}"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


@pytest.mark.parametrize("folders", [("common",), HOSPITAL, COORDINATOR], ids="-".join)
def test_every_module_imports_without_the_others(folders: tuple[str, ...]) -> None:
    packages = [f"erosion_{folder}" for folder in folders]
    run = run_with(folders, IMPORT_ALL.format(packages=packages))
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize(
    ("folders", "there", "missing"),
    [
        (HOSPITAL, {"client", "check", "review", "predict"}, {"server": "erosion-server"}),
        (COORDINATOR, {"server", "describe", "audit", "report"}, {"client": "erosion-client"}),
        (HOSPITAL, {"status", "log"}, {"testbed": "erosion-fl"}),
    ],
)
def test_the_command_line_offers_what_is_installed(
    folders: tuple[str, ...], there: set[str], missing: dict[str, str]
) -> None:
    program = "from erosion_common.program.commands import installed_commands as i\n"
    run = run_with(folders, program + "print(*(command.name for command in i()))")
    assert there <= set(run.stdout.split()), run.stderr
    for command, distribution in missing.items():
        assert command not in run.stdout.split()
        refused = run_with(folders, COMMAND.format(arguments=[command]))
        assert refused.returncode == 2
        assert f"`erosion {command}` comes with {distribution}" in refused.stderr


def test_a_hospital_alone_makes_its_key_and_reads_about_its_file(tmp_path: Path) -> None:
    arguments = ["enroll", "request", "north", "--out", str(tmp_path / "node.key")]
    assert run_with(HOSPITAL, COMMAND.format(arguments=arguments)).returncode == 0
    assert (tmp_path / "node.csr").exists()
    assert run_with(HOSPITAL, COMMAND.format(arguments=["schema", "site"])).returncode == 0
    refused = run_with(COORDINATOR, COMMAND.format(arguments=["schema", "site"]))
    assert refused.returncode != 0
    assert "erosion-client" in refused.stderr
    assert "Traceback" not in refused.stderr
