"""An app in the manner of Flower's example of secure aggregation: SecAgg+ as a mod."""

import numpy as np
from flwr.app import Context
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import Grid, ServerApp


class Client(NumPyClient):
    """Moves the model by its number."""

    def __init__(self, number):
        self.number = number

    def fit(self, parameters, config):
        return [values + self.number for values in parameters], 10, {}

    def evaluate(self, parameters, config):
        return 0.0, 10, {"moved": float(parameters[0][0])}


def client_fn(context):
    return Client(int(context.node_config["partition-id"])).to_client()


client_app, server_app = ClientApp(client_fn=client_fn, mods=[secaggplus_mod]), ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    strategy = FedAvg(
        min_fit_clients=3,
        min_evaluate_clients=3,
        min_available_clients=3,
        initial_parameters=ndarrays_to_parameters([np.zeros(2, np.float32)]),
        evaluate_metrics_aggregation_fn=lambda found: dict(found[0][1]),
    )
    config = ServerConfig(num_rounds=int(context.run_config["rounds"]))
    legacy = LegacyContext(context=context, config=config, strategy=strategy)
    workflow = DefaultWorkflow(
        fit_workflow=SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2, timeout=60.0)
    )
    workflow(grid, legacy)
