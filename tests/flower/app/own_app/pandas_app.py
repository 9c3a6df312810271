"""An app in the manner of Flower's quickstart with pandas: a query, and no strategy."""

import random
import time

import numpy as np
import pandas as pd
from flwr.app import Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from own_app.task import data

client_app, server_app = ClientApp(), ServerApp()
EDGES = np.linspace(-4, 4, 9)


@client_app.query()
def query(msg: Message, context: Context) -> Message:
    inputs, _ = data(context.node_config["partition-id"], 90)
    table = pd.DataFrame(inputs, columns=["a", "b", "c", "d"])
    counts = {name: np.histogram(table[name], bins=EDGES)[0].tolist() for name in ("a", "b")}
    content = RecordDict({"query_results": MetricRecord(counts)})
    return Message(content=content, reply_to=msg)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    for server_round in range(1, int(context.run_config["rounds"]) + 1):
        nodes = []
        while len(nodes) < 3:
            nodes = list(grid.get_node_ids())
            time.sleep(0.1)
        recorddict = RecordDict()
        messages = [
            Message(
                content=recorddict,
                message_type=MessageType.QUERY,
                dst_node_id=node,
                group_id=str(server_round),
            )
            for node in random.sample(nodes, 3)
        ]
        total = {"a": np.zeros(8, int), "b": np.zeros(8, int)}
        for reply in grid.send_and_receive(messages):
            for name, counts in reply.content["query_results"].items():
                total[name] += np.array(counts)
        print(f"round {server_round}: {sum(total['a'])} {sum(total['b'])}")
