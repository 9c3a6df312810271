"""An app in the manner of Flower's quickstart with PyTorch: it knows nothing of this project."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from own_app.task import data


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(4, 8)
        self.bn1 = nn.BatchNorm1d(8)
        self.fc2 = nn.Linear(8, 2)

    def forward(self, x):
        return self.fc2(torch.relu(self.bn1(self.fc1(x))))


def load_data(partition_id, patients):
    inputs, targets = data(partition_id, patients)
    return TensorDataset(torch.tensor(inputs), torch.tensor(targets).long())


client_app, server_app = ClientApp(), ServerApp()


@client_app.train()
def train(msg: Message, context: Context) -> Message:
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    torch.manual_seed(1)
    trainset = load_data(context.node_config["partition-id"], 90)
    optimizer = torch.optim.SGD(model.parameters(), lr=msg.content["config"]["lr"], momentum=0.9)
    for inputs, targets in DataLoader(trainset, batch_size=30, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
    metrics = MetricRecord({"train_loss": loss.item(), "num-examples": len(trainset)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=msg)


@client_app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    model.eval()
    inputs, targets = load_data(context.node_config["partition-id"], 200)[:]
    with torch.no_grad():
        accuracy = (model(inputs).argmax(1) == targets).float().mean().item()
    metrics = MetricRecord({"eval_acc": accuracy, "num-examples": len(targets)})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=msg)


def first_arrays():
    torch.manual_seed(0)
    return ArrayRecord(Net().state_dict())


TRAIN_CONFIG = {"lr": 0.1}


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    strategy = FedAvg(fraction_train=1.0, min_available_nodes=3)
    strategy.start(
        grid=grid,
        initial_arrays=first_arrays(),
        train_config=ConfigRecord(TRAIN_CONFIG),
        num_rounds=context.run_config["rounds"],
    )
