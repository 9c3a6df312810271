"""An app in the manner of Flower's quickstart with scikit-learn: NumPy arrays without names."""

import warnings

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from sklearn.linear_model import LogisticRegression

from own_app.task import data


def model_with(ndarrays):
    model = LogisticRegression(max_iter=1, warm_start=True)
    model.classes_ = np.array([False, True])
    model.coef_, model.intercept_ = (array.copy() for array in ndarrays)
    return model


client_app, server_app = ClientApp(), ServerApp()


@client_app.train()
def train(msg: Message, context: Context) -> Message:
    model = model_with(msg.content["arrays"].to_numpy_ndarrays())
    inputs, targets = data(context.node_config["partition-id"], 90)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one step does not converge
        model.fit(inputs.astype(float), targets)
    metrics = MetricRecord({"num-examples": len(targets)})
    content = {"arrays": ArrayRecord([model.coef_, model.intercept_]), "metrics": metrics}
    return Message(content=RecordDict(content), reply_to=msg)


@client_app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    model = model_with(msg.content["arrays"].to_numpy_ndarrays())
    inputs, targets = data(context.node_config["partition-id"], 200)
    accuracy = model.score(inputs, targets)
    metrics = MetricRecord({"eval_acc": accuracy, "num-examples": len(targets)})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=msg)


def first_arrays():
    return ArrayRecord([np.zeros((1, 4)), np.zeros(1)])


TRAIN_CONFIG = {}


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    strategy = FedAvg(min_available_nodes=3)
    config = ConfigRecord(TRAIN_CONFIG)
    strategy.start(
        grid, first_arrays(), num_rounds=context.run_config["rounds"], train_config=config
    )
