"""Flower's own FedAvg; tells when it is done, and how long its rounds took."""

import json
import os
import time
from itertools import pairwise
from pathlib import Path

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from own_app.task import as_record, first_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    strategy = FedAvg(min_train_nodes=3, min_evaluate_nodes=3, min_available_nodes=3)
    begun = []

    def note(server_round: int, arrays: ArrayRecord) -> None:
        begun.append(time.monotonic())

    result = strategy.start(
        grid,
        as_record(first_model()),
        num_rounds=int(context.run_config["rounds"]),
        evaluate_fn=note,
    )
    figures = {
        "seconds": [late - early for early, late in pairwise(begun)],
        "evaluate": {str(n): dict(m) for n, m in result.evaluate_metrics_clientapp.items()},
        "arrays": {name: array.numpy().tolist() for name, array in result.arrays.items()},
    }
    Path(os.environ["OWN_APP_OUT"]).write_text(json.dumps(figures), encoding="utf-8")
