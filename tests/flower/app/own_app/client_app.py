"""Trains on the site's own patients; says which site it is."""

import numpy as np
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from own_app.task import as_model, as_record, data, probabilities

app = ClientApp()
STEPS, LEARNING_RATE = 5, np.float32(0.1)


@app.train()
def train(message: Message, context: Context) -> Message:
    site = int(context.node_config["partition-id"])
    inputs, targets = data(site, patients=60)
    model = as_model(message.content["arrays"])
    for _ in range(STEPS):
        apart = probabilities(model, inputs) - targets
        model["0.weight"] = model["0.weight"] - LEARNING_RATE * (apart @ inputs) / len(targets)
        model["0.bias"] = model["0.bias"] - LEARNING_RATE * apart.mean(keepdims=True)
        model["1.num_batches"] = model["1.num_batches"] + 1
    found = np.clip(np.where(targets, p := probabilities(model, inputs), 1 - p), 1e-6, 1)
    metrics = {
        "partition-id": site,
        "num-examples": len(targets),
        "samples-seen": STEPS * len(targets),
        "train-loss": float(-np.log(found).mean()),
    }
    content = {"arrays": as_record(model), "metrics": MetricRecord(metrics)}
    return Message(RecordDict(content), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    site = int(context.node_config["partition-id"])
    inputs, targets = data(site, patients=200)
    model = as_model(message.content["arrays"])
    correct = float(((probabilities(model, inputs) > 0.5) == targets).mean())
    metrics = {"num-examples": len(targets), "accuracy": correct}
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)
