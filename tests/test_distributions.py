"""Each distribution runs with what it requires and without the others of ours."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[1]
HOSPITAL, COORDINATOR = ("common", "client"), ("common", "server")
PROGRAM = """
import importlib, io, json, pkgutil, sys
from contextlib import redirect_stderr, redirect_stdout
sys.path = [path for path in sys.path if path not in {left_out}] + {kept}
for name in {packages}:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, name + "."):
        importlib.import_module(module.name)
from erosion_common.program.command_line import main
from erosion_common.program.commands import installed_commands
found = {{"commands": [command.name for command in installed_commands()]}}
for arguments in {runs}:
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as said:
        try:
            code = main(arguments)
        except SystemExit as end:
            code = end.code
    found[" ".join(arguments[:2])] = [code, said.getvalue()]
print(json.dumps(found))
"""


def run_with(folders: tuple[str, ...], *runs: list[str]) -> dict[str, Any]:
    """Import every module and run commands where the other folders of this checkout are not."""
    program = PROGRAM.format(
        left_out=[str(ROOT / folder) for folder in ("", "common", "client", "server")] + [""],
        kept=[str(ROOT / folder) for folder in folders],
        packages=[f"erosion_{folder}" for folder in folders],
        runs=runs,
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE
    )
    assert run.returncode == 0, run.stderr
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def test_a_hospital_alone_has_its_commands_and_makes_its_key(tmp_path: Path) -> None:
    key = ["enroll", "request", "north", "--out", str(tmp_path / "node.key")]
    found = run_with(HOSPITAL, ["server"], ["testbed"], key, ["schema", "site"])
    assert {"client", "check", "review", "predict", "status", "log"} <= set(found["commands"])
    for command, distribution in {"server": "erosion-server", "testbed": "erosion-fl"}.items():
        assert command not in found["commands"]
        code, said = found[command]
        assert code == 2
        assert f"`erosion {command}` comes with {distribution}" in said
    assert found["enroll request"][0] == found["schema site"][0] == 0
    assert (tmp_path / "node.csr").exists()


def test_a_coordinator_alone_has_its_commands_and_reads_no_site_file() -> None:
    found = run_with(COORDINATOR, ["client"], ["schema", "site"])
    assert {"server", "describe", "audit", "report"} <= set(found["commands"])
    assert "client" not in found["commands"]
    code, said = found["client"]
    assert code == 2
    assert "`erosion client` comes with erosion-client" in said
    code, said = found["schema site"]
    assert code != 0
    assert "erosion-client" in said
