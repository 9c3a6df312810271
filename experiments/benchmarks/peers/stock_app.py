"""The Flower app that stock Flower runs: FedAvg over sites that add their own constant.

`stock_flower.measure` copies this file into an app folder. The ClientApp imports torch only when
asked to: stock Flower starts a new process for every message, so a site that trains pays for that
import in every round, and a site that only adds a constant shows stock Flower at its best.
"""

import importlib
import time
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from experiments.benchmarks.harness import RoundClock, initial_parameters, site_constant

server_app = ServerApp()
client_app = ClientApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds; every round ends in FedAvg's own call of `evaluate_fn`."""
    num_sites = int(context.run_config["num-sites"])
    clock = RoundClock(Path(str(context.run_config["clock"])))
    while len(list(grid.get_node_ids())) < num_sites:
        time.sleep(0.2)

    def end_round(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        clock.tick()
        return None

    initial = initial_parameters(int(context.run_config["dim"]))
    result = FedAvg(
        fraction_evaluate=0.0, min_train_nodes=num_sites, min_available_nodes=num_sites
    ).start(
        grid,
        ArrayRecord([initial]),
        num_rounds=int(context.run_config["num-rounds"]),
        timeout=600,
        evaluate_fn=end_round,
    )
    final = result.arrays.to_numpy_ndarrays()[0]
    clock.finish(float(np.mean(final - initial)))


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Return the received parameters plus this site's constant."""
    if context.run_config["import-torch"]:
        importlib.import_module("torch")
    content = message.content
    parameters = content.array_records["arrays"].to_numpy_ndarrays()[0]
    update = parameters + site_constant(int(context.node_config["site"]))
    reply = RecordDict({"arrays": ArrayRecord([update])})
    reply["metrics"] = MetricRecord({"num-examples": 1})
    return Message(reply, reply_to=message)
