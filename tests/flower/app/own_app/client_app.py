"""Trains on the site's own patients; says which site it is."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from own_app.task import data, net

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    site = int(context.node_config["partition-id"])
    inputs, targets = data(site, patients=60)
    model = net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = torch.tensor(0.0)
    for _ in range(5):
        optimizer.zero_grad()
        loss = nn_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
    metrics = {
        "partition-id": site,
        "num-examples": len(targets),
        "samples-seen": 5 * len(targets),
        "train-loss": loss.item(),
    }
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)}
    return Message(RecordDict(content), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    site = int(context.node_config["partition-id"])
    inputs, targets = data(site, patients=200)
    model = net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    model.eval()
    with torch.no_grad():
        correct = float((model(inputs).argmax(1) == targets).float().mean())
    metrics = {"num-examples": len(targets), "accuracy": correct}
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)


nn_loss = torch.nn.functional.cross_entropy
