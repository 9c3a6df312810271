"""An app in the manner of Flower's older quickstarts: server_fn, client_fn, and its log alone."""

import numpy as np
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.serverapp import ServerApp


class Client(NumPyClient):
    """Moves the model by its number."""

    def __init__(self, number):
        self.number = number

    def fit(self, parameters, config):
        return [values + self.number for values in parameters], 10, {}

    def evaluate(self, parameters, config):
        return float(parameters[0].sum()), 10, {"moved": float(parameters[0][0])}


def client_fn(context):
    return Client(int(context.node_config["partition-id"])).to_client()


def server_fn(context):
    strategy = FedAvg(
        min_fit_clients=3,
        min_evaluate_clients=3,
        min_available_clients=3,
        initial_parameters=ndarrays_to_parameters([np.zeros(2, np.float32)]),
        evaluate_metrics_aggregation_fn=lambda found: dict(found[0][1]),
    )
    config = ServerConfig(num_rounds=int(context.run_config["rounds"]))
    return ServerAppComponents(strategy=strategy, config=config)


client_app = ClientApp(client_fn=client_fn)
server_app = ServerApp(server_fn=server_fn)
