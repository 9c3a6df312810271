"""The notebook of docs/flower.md runs in Flower's own simulation, and shows what it showed."""

import importlib
import importlib.util
import json
import subprocess
from pathlib import Path

import pytest
import torch
from flwr.app import Context, RecordDict

from erosion_common.support.network import free_ports
from experiments.benchmarks.harness import Processes, quiet_environment
from experiments.benchmarks.peers.stock_flower import start_superlink
from tests.support.flower_grid import InProcessGrid, node_of
from tests.support.patience import PATIENCE

NOTEBOOK = Path(__file__).parents[2] / "docs" / "flower.ipynb"


def average(out: Path, rounds: int) -> None:
    """What `flwr run` does with the app and FedAvg, without ray."""
    importlib.invalidate_caches()
    client, server = (
        importlib.import_module(f"tumours.{name}_app").app for name in ("client", "server")
    )
    grid = InProcessGrid({number: node_of(client, number) for number in range(5)})
    with torch.random.fork_rng():
        context = Context(1, 1, {}, RecordDict(), {"rounds": rounds, "out": str(out)})
        context.run_config["strategy"] = "fedavg"
        server(grid, context)


def test_the_notebook_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Flower's simulation needs ray: pip install '.[simulation]'")
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    sources = ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]
    averages, erodes = (cell for cell in sources if cell.startswith("!"))
    # Each begins a ray of its own, so one of them does, for both.
    assert averages == erodes.replace('"erosion"', '"fedavg"').replace("{eroded}", "{averaged}")

    def as_code(cell: str) -> str:
        """What a notebook does with a cell."""
        first, _, rest = cell.partition("\n")
        if first.startswith("%%writefile "):
            return f"Path({first.split()[1]!r}).write_text({rest!r}, encoding='utf-8')"
        if cell == averages:
            return "average(averaged, ROUNDS)"
        if first.startswith("!"):
            return f"flower(f{first[1:]!r})"
        return cell

    code = "\n".join(map(as_code, sources))
    assert "ROUNDS = 12" in code
    code = code.replace("ROUNDS = 12", "ROUNDS = 2")
    (tmp_path / "app").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "app")
    with Processes(deadline_seconds=840) as processes:
        fleet, control, appio = free_ports(3)
        # `flwr run` looks there for one, and would start another that nobody stops.
        names = ("FLWR_LOCAL_CONTROL_API_PORT", "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT")  # by version
        env = dict.fromkeys(names, str(control))
        start_superlink(processes, fleet, control, appio, env, "--simulation")
        env = {**quiet_environment(), **env, "FLWR_HOME": str(processes.folder)}

        def flower(command: str) -> None:
            subprocess.run(command, shell=True, check=True, env=env, timeout=PATIENCE)

        exec(code, {"Path": Path, "average": average, "flower": flower})
    first, second, *weights = capsys.readouterr().out.splitlines()
    assert first.startswith("FedAvg          log loss 0.")
    assert second.startswith("Weight Erosion  log loss 0.")
    assert [line.split()[0] for line in weights] == ["home", "alike", "small", "large", "miscoded"]
    home, alike, _, _, miscoded = (float(line.split()[-1]) for line in weights)
    assert miscoded < alike < home == 1.0
