"""A Flower Grid in this process, whose nodes are ClientApps or plain functions."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp

from erosion_common.protocol.flower import identify
from erosion_server.link.channel import MessageGrid

identify()

Node = Callable[[Message], RecordDict | Error | None]  # None: no answer


class InProcessGrid(MessageGrid):
    """Asks one node after another."""

    def __init__(self, nodes: Mapping[int, Node]) -> None:
        self.nodes = dict(nodes)
        self.asked: list[list[int]] = []  # of every call
        self.sent: list[RecordDict] = []  # the first request of every call

    def get_node_ids(self) -> list[int]:
        """All that are there."""
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Not used."""
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Not used."""
        raise NotImplementedError

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """The answers, in the order in which nodes were asked."""
        del timeout
        requests = list(messages)
        self.asked.append([m.metadata.dst_node_id for m in requests])
        self.sent += [m.content for m in requests[:1]]
        replies = []
        for request in requests:
            answer = self.nodes[request.metadata.dst_node_id](request)
            if answer is not None:
                replies.append(Message(answer, reply_to=request))
        return replies


def node_of(app: ClientApp, site: int) -> Node:
    """A site that an app says is number `site`."""

    def answer(request: Message) -> RecordDict | Error:
        node_id = request.metadata.dst_node_id
        context = Context(1, node_id, {"partition-id": site}, RecordDict(), {})
        answered = app(request, context)
        return answered.error if answered.has_error() else answered.content

    return answer


def moved_by(*step: float, name: object, samples: float = 10, **more: Any) -> Node:
    """A node that moves the model's one array `w` by `step`, and says so."""

    def answer(request: Message) -> RecordDict:
        arrays = request.content.array_records["arrays"]
        moved = arrays["w"].numpy() + np.array(step, dtype=np.float32)
        return reply({**{n: a.numpy() for n, a in arrays.items()}, "w": moved}, name, samples, more)

    return answer


def reply(
    arrays: Mapping[str, Any],
    name: object,
    samples: Any = 10,
    more: Mapping[str, Any] | None = None,
) -> RecordDict:
    """What a ClientApp answers; a name that is a text goes into a config."""
    metrics = {"num-examples": samples, **(more or {})}
    records: dict[str, Any] = {}
    if isinstance(name, int):
        metrics["partition-id"] = name
    elif name is not None:
        records["site"] = ConfigRecord({"partition-id": str(name)})
    records["arrays"] = ArrayRecord({n: Array(np.asarray(a)) for n, a in arrays.items()})
    records["metrics"] = MetricRecord(metrics)
    return RecordDict(records)
