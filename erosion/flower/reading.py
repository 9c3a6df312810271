"""Reads a node's reply to a training request, screened as a hospital's answer is, and its name."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from flwr.app import ArrayRecord, Message, MetricRecord
from torch import Tensor

from erosion.flower.arrangement import Arrangement, Values
from erosion_common.aggregation.cohort import Update
from erosion_common.algorithms.base import ArmBase, ExpectedReply
from erosion_common.protocol.messages import LARGEST_COUNT, TrainReply, TrainResult
from erosion_common.rounds.records import Answer, Rejection
from erosion_common.rounds.screening import Expected, screen
from erosion_common.support.text import printable
from erosion_server.link.service import Sessions

MOST_CHARACTERS = 100


class Names:
    """Binds names to node ids: what a node says first holds for as long as it is connected.

    Flower's node ids change where a node registers again, unless its key is registered; what is
    remembered of a hospital therefore belongs to its name.
    """

    def __init__(self, known: Mapping[int, str] | None) -> None:
        """`known`: the coordinator's own list, which no node's word changes; None: their word."""
        self._known = known
        self.of_node: dict[int, str] = dict(known or {})

    def hear(self, said: Mapping[int, str], connected: Collection[int]) -> dict[int, str]:
        """Return what nodes call themselves. Returns the nodes that are not believed, and why."""
        problems: dict[int, str] = {}
        new: dict[int, str] = {}
        for node, name in said.items():
            own = self.of_node.get(node)
            if own is not None and name != own:
                problems[node] = f"calls itself {name!r}; its name is {own!r}"
            elif own is None and self._known is not None:
                problems[node] = "is not among `nodes`, the nodes that take part"
            elif own is None:
                new[node] = name
        taken = {name for node, name in self.of_node.items() if node in connected}
        times = Counter(new.values())
        for node, name in new.items():
            if name in taken:
                problems[node] = f"calls itself {name!r}, as another node does"
            elif times[name] > 1:
                problems[node] = f"calls itself {name!r}, as another node does in the same round"
            else:
                self._bind(node, name)
        return problems

    def _bind(self, node: int, name: str) -> None:
        for gone in [n for n, held in self.of_node.items() if held == name]:
            del self.of_node[gone]  # it has come back as another node
        self.of_node[node] = name

    def node_of(self, name: str) -> int | None:
        """Return the node that a name belongs to."""
        return next((node for node, held in self.of_node.items() if held == name), None)


def shown(name: object) -> str:
    """Return a name as a site gives it, fit to be shown."""
    return printable(str(name))[:MOST_CHARACTERS]


def enrolled(*names: str) -> dict[int, str]:
    """Node id -> name, by the names that the sites' certificates hold; for `nodes=`."""
    return {Sessions.node_id(name): name for name in names}


R = TypeVar("R")


class InconsistentReplyError(ValueError):
    """A reply that lacks what its app must send, or has it twice; FedAvg ends the run for it."""


@dataclass(frozen=True, slots=True)
class Read:
    """One reply."""

    answer: Answer
    rest: Mapping[str, Values] = field(default_factory=dict)  # its buffers and counters
    metrics: Mapping[str, Any] = field(default_factory=dict)  # its other metrics
    is_inconsistent: bool = False  # the app's fault, not that of what it trained


@dataclass(frozen=True, slots=True)
class Reading:
    """Where in a reply things stand."""

    arrays_key: str  # of the record with the model, where a reply has several
    name_key: str
    count_key: str  # of the site's training samples
    seen_key: str  # of the samples that the round's steps used; without it all were, once
    max_update_norm: float | None

    def name_in(self, reply: Message) -> str | None:
        """Return what the node calls itself, in its metrics or, a text, in a config.

        Raises InconsistentReplyError where its records differ in it.
        """
        if reply.has_error():
            return None
        content = reply.content
        names = {
            _name(value)
            for records in (content.metric_records, content.config_records)
            for record in records.values()
            for key, value in record.items()
            if key == self.name_key
        }
        if len(names) > 1:
            raise InconsistentReplyError(f"{self.name_key!r} twice: {' and '.join(sorted(names))}")
        return next(iter(names), None)

    def metrics_of(self, reply: Message) -> MetricRecord:
        """Return the record with the number of samples. Raises InconsistentReplyError."""
        found = reply.content.metric_records
        counted = {name: record for name, record in found.items() if self.count_key in record}
        return _the_one(counted or found, "metrics", "metrics", f"with {self.count_key!r}")

    def arrays_of(self, reply: Message) -> ArrayRecord:
        """Return the record with the model. Raises InconsistentReplyError."""
        found = reply.content.array_records
        return _the_one(found, self.arrays_key, "arrays", f"called {self.arrays_key!r}")

    def read(
        self,
        reply: Message,
        site: str,
        sent: Tensor,
        model: Arrangement,
        rule: ArmBase,
        round_number: int,
    ) -> Read:
        """Return the site's update of `sent`, or the reason why there is none."""
        attachments = rule.attachment_sizes(len(sent))
        try:
            arrays, metrics = self.arrays_of(reply), self.metrics_of(reply)
            samples = _weight(metrics, self.count_key)
            seen = _weight(metrics, self.seen_key) if self.seen_key in metrics else samples
            attached = {name: _numbers(metrics, name, n) for name, n in attachments.items()}
            params, rest = model.parts(arrays)
        except ValueError as problem:
            rejected = Rejection(f"a reply with {problem}")
            return Read(rejected, is_inconsistent=isinstance(problem, InconsistentReplyError))
        header = TrainReply(  # its counts are whole numbers; the real ones replace them below
            hospital=site,
            arm=rule.algorithm,
            round=round_number,
            seconds=0.0,
            num_samples=1,
            samples_seen=1,
        )
        expected = Expected(
            rule.algorithm,
            round_number,
            len(sent),
            expects=ExpectedReply(update=True, tensors=rule.attachment_specs(len(sent))),
            max_norm=self.max_update_norm,
            dtype=sent.dtype,
        )
        answer = screen(TrainResult(header, params - sent, attached), site, expected)
        if isinstance(answer, Update):
            answer = replace(answer, num_samples=samples, all_samples=samples, samples_seen=seen)
        used = {self.name_key, self.count_key, self.seen_key, *attachments}
        return Read(answer, rest, {key: metrics[key] for key in metrics if key not in used})


def _the_one(records: Mapping[str, R], usual: str, kind: str, what: str) -> R:
    """Return the record of the usual name, or the only one."""
    if not records:
        raise InconsistentReplyError(f"no {kind}")
    if usual in records:
        return records[usual]
    if len(records) > 1:
        names = ", ".join(repr(shown(name)) for name in records)
        several = f"{len(records)} records of {kind} ({names}) and not one {what}"
        raise InconsistentReplyError(several)
    return next(iter(records.values()))


def _name(value: object) -> str:
    """Return a name as text, in any type that a framework gave it."""
    return shown(int(value) if isinstance(value, float) and value.is_integer() else value)


def _weight(metrics: MetricRecord, key: str) -> float:
    value = metrics.get(key)
    if not isinstance(value, int | float):
        raise InconsistentReplyError(f"{key!r} = {shown(value)}, not a number")
    if not 0 < value <= LARGEST_COUNT:
        raise ValueError(f"{key!r} = {shown(value)}, not above 0 and up to {LARGEST_COUNT}")
    return int(value) if float(value).is_integer() else value


def _numbers(metrics: MetricRecord, key: str, how_many: int) -> Tensor:
    value = metrics.get(key)
    listed = value if isinstance(value, list) else [value]
    try:
        numbers = [float(n) for n in listed if isinstance(n, int | float)]
    except OverflowError:
        raise ValueError(f"{key!r} with a number that is too large") from None
    if len(listed) != how_many or len(numbers) != how_many:
        raise ValueError(f"{key!r} = {shown(value)}, not {how_many} numbers")
    return torch.tensor(numbers, dtype=torch.float32)
