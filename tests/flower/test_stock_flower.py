"""An app of somebody's own under `erosion.flower`, on stock Flower with `flwr run`.

In Flower's simulation: test_notebook.py.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from experiments.benchmarks.harness import Processes
from experiments.benchmarks.peers.stock_flower import run_app, start_deployment

APP = Path(__file__).with_name("app")
DEADLINE_SECONDS = 840.0


def check(out: Path) -> None:
    figures: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    first, last = figures["train"]["1"], figures["train"]["2"]
    assert last["weight-0"] == 1.0
    assert last["weight-2"] < first["weight-2"] < 1.0  # the miscoded hospital loses more
    assert last["weight-2"] < last["weight-1"] < 1.0
    assert 0.0 < figures["evaluate"]["2"]["accuracy"] <= 1.0
    assert figures["arrays"]["1.num_batches"] == 10  # five steps a round, the user's own


def environment(out: Path) -> dict[str, str]:
    path = os.pathsep.join([str(APP), str(Path(__file__).parents[2])])
    return {"OWN_APP_OUT": str(out), "PYTHONPATH": path}


def test_in_a_stock_deployment(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    with Processes(deadline_seconds=DEADLINE_SECONDS) as processes:
        control = start_deployment(processes, 3, "partition-id={site}", environment(out))
        app = shutil.copytree(APP, processes.folder / "app")
        run_app(processes, app, control, is_done=out.exists)
    check(out)
