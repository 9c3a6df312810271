"""Weight Erosion for north over another app's ClientApp, which says no name."""

import os
from importlib import import_module

from flwr.app import ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

from erosion.flower import WeightErosion, enrolled

server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    app = import_module(f"own_app.{os.environ['OTHER_APP']}")
    rounds = int(context.run_config["rounds"])
    strategy = WeightErosion(
        user="north",
        num_rounds=rounds,
        nodes=enrolled("north", "south", "west"),
        settings={"distance_penalty": 0.2},
        min_available_nodes=3,
    )
    strategy.start(
        grid, app.first_arrays(), num_rounds=rounds, train_config=ConfigRecord(app.TRAIN_CONFIG)
    )
