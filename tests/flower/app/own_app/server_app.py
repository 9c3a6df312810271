"""Weight erosion for hospital 0."""

import json
import os
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from erosion.flower import WeightErosion
from own_app.task import as_record, first_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    del context
    rounds, nodes = 2, 3
    strategy = WeightErosion(
        user=0,
        num_rounds=rounds,
        settings={"distance_penalty": 0.2},
        min_available_nodes=nodes,
        quorum=nodes,
    )
    result = strategy.start(grid, as_record(first_model()), num_rounds=rounds, timeout=600)
    figures = {
        "train": {str(n): dict(m) for n, m in result.train_metrics_clientapp.items()},
        "evaluate": {str(n): dict(m) for n, m in result.evaluate_metrics_clientapp.items()},
        "arrays": {name: array.numpy().tolist() for name, array in result.arrays.items()},
    }
    Path(os.environ["OWN_APP_OUT"]).write_text(json.dumps(figures), encoding="utf-8")
