"""One step a round, on the next batch of a fixed order."""

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from erosion.sources.titanic import BATCH_SIZE
from weighterosion.task import gradients, hospital, probabilities

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Send the model after one step, and who sends it."""
    own, size = hospital(context), BATCH_SIZE[context.run_config["split"]]
    batches = -(-len(own.labels) // size)
    start = (msg.content["config"]["server-round"] - 1) % batches * size
    inputs, labels = (part[start : start + size].numpy() for part in (own.inputs, own.labels))
    parameters = msg.content["arrays"].to_numpy_ndarrays()
    rate = np.float32(context.run_config["learning-rate"])
    steps = gradients(parameters, inputs, labels)
    after = [at - rate * step for at, step in zip(parameters, steps, strict=True)]
    metrics = MetricRecord(
        {
            "partition-id": int(context.node_config["partition-id"]),
            "num-examples": len(own.labels),
            "samples-seen": len(labels),
        }
    )
    content = RecordDict({"arrays": ArrayRecord(after), "metrics": metrics})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Measure the accuracy on the user's test passengers."""
    own = hospital(context)
    parameters = msg.content["arrays"].to_numpy_ndarrays()
    found = probabilities(parameters, own.test_inputs.numpy()).argmax(axis=1)
    accuracy = float((found == own.test_labels.numpy()).mean())
    metrics = MetricRecord({"accuracy": accuracy})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=msg)
