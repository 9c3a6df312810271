"""The notebook of docs/flower.md runs in Flower's own simulation, and shows what it showed."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from experiments.benchmarks.harness import Processes

NOTEBOOK = Path(__file__).parents[2] / "docs" / "flower.ipynb"


def test_the_notebook_runs(tmp_path: Path) -> None:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Flower's simulation needs ray: pip install '.[simulation]'")
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "code")
    assert "ROUNDS = 12" in code
    script = tmp_path / "notebook.py"
    script.write_text(code.replace("ROUNDS = 12", "ROUNDS = 2"), encoding="utf-8")
    with Processes(deadline_seconds=840) as processes:
        printed = processes.output_of("notebook", [sys.executable, str(script)])
    first, second, *weights = printed.splitlines()
    assert first.startswith("FedAvg          log loss 0.")
    assert second.startswith("Weight Erosion  log loss 0.")
    assert [line.split()[0] for line in weights] == ["home", "alike", "small", "large", "miscoded"]
    home, alike, _, _, miscoded = (float(line.split()[-1]) for line in weights)
    assert miscoded < alike < home == 1.0
