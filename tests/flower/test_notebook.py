"""The notebook of docs/flower.md runs in Flower's own simulation, and shows what it showed."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from erosion_common.support.network import free_ports
from experiments.benchmarks.harness import Processes
from experiments.benchmarks.peers.stock_flower import start_superlink

NOTEBOOK = Path(__file__).parents[2] / "docs" / "flower.ipynb"
BEGIN = "import subprocess\nfrom pathlib import Path\n"


def as_script(cell: str) -> str:
    """What a notebook does with a cell."""
    first, _, rest = cell.partition("\n")
    if first.startswith("%%writefile "):
        return f"Path({first.split()[1]!r}).write_text({rest!r}, encoding='utf-8')"
    if first.startswith("!"):
        return f"subprocess.run(f{first[1:]!r}, shell=True, check=True, stdout=2)"
    return cell


def test_the_notebook_runs(tmp_path: Path) -> None:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Flower's simulation needs ray: pip install '.[simulation]'")
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    sources = ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]
    code = BEGIN + "\n".join(map(as_script, sources))
    assert "ROUNDS = 12" in code
    script = tmp_path / "notebook.py"
    script.write_text(code.replace("ROUNDS = 12", "ROUNDS = 2"), encoding="utf-8")
    with Processes(deadline_seconds=840) as processes:
        fleet, control, appio = free_ports(3)
        # `flwr run` looks there for one, and would start another that nobody stops.
        names = ("FLWR_LOCAL_CONTROL_API_PORT", "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT")  # by version
        env = dict.fromkeys(names, str(control))
        start_superlink(processes, fleet, control, appio, env, "--simulation")
        printed = processes.output_of("notebook", [sys.executable, str(script)], env=env)
    first, second, *weights = printed.splitlines()
    assert first.startswith("FedAvg          log loss 0.")
    assert second.startswith("Weight Erosion  log loss 0.")
    assert [line.split()[0] for line in weights] == ["home", "alike", "small", "large", "miscoded"]
    home, alike, _, _, miscoded = (float(line.split()[-1]) for line in weights)
    assert miscoded < alike < home == 1.0
