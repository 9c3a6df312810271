"""Reads a node's reply to a training request, screened as a hospital's answer is."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from flwr.app import Message, MetricRecord
from torch import Tensor

from erosion.common.algorithms.base import ArmBase, Brings
from erosion.common.protocol.figures import LARGEST_COUNT
from erosion.common.protocol.messages import TrainReply, TrainResult
from erosion.common.rounds.records import Answer, Rejection
from erosion.common.rounds.screening import Expected, screen
from erosion.flower.arrangement import Arrangement, Values
from erosion.flower.names import shown


@dataclass(frozen=True, slots=True)
class Read:
    """One reply."""

    answer: Answer
    rest: Mapping[str, Values] = field(default_factory=dict)  # its buffers and counters
    metrics: Mapping[str, Any] = field(default_factory=dict)  # its other metrics


@dataclass(frozen=True, slots=True)
class Reading:
    """Where in a reply things stand."""

    name_key: str
    count_key: str  # of the site's training samples
    seen_key: str  # of the samples that the round's steps used; without it all were, once
    max_update_norm: float | None

    def name_in(self, reply: Message) -> str | None:
        """What the node calls itself, in its metrics or, a text, in a config."""
        if reply.has_error():
            return None
        for metrics in reply.content.metric_records.values():
            if self.name_key in metrics:
                return shown(metrics[self.name_key])
        for config in reply.content.config_records.values():
            if self.name_key in config:
                return shown(config[self.name_key])
        return None

    def read(
        self,
        reply: Message,
        site: str,
        sent: Tensor,
        model: Arrangement,
        rule: ArmBase,
        round_number: int,
    ) -> Read:
        """The site's update of `sent`, or the reason why there is none."""
        attachments = rule.attachment_sizes(len(sent))
        content = reply.content
        try:
            arrays = next(iter(content.array_records.values()), None)
            metrics = next(iter(content.metric_records.values()), None)
            if arrays is None or metrics is None:
                raise ValueError("no arrays" if arrays is None else "no metrics")
            samples = _count(metrics, self.count_key)
            header = TrainReply(
                hospital=site,
                arm=rule.algorithm,
                round=round_number,
                seconds=0.0,
                num_samples=samples,
                samples_seen=_count(metrics, self.seen_key)
                if self.seen_key in metrics
                else samples,
            )
            attached = {name: _numbers(metrics, name, n) for name, n in attachments.items()}
            delta, rest = model.vector(arrays) - sent, model.rest_of(arrays)
        except ValueError as problem:
            return Read(Rejection(f"a reply with {problem}"))
        expected = Expected(
            rule.algorithm,
            round_number,
            len(sent),
            brings=Brings(update=True, tensors=rule.attachment_terms(len(sent))),
            max_norm=self.max_update_norm,
        )
        answer = screen(TrainResult(header, delta, attached), site, expected)
        used = {self.name_key, self.count_key, self.seen_key, *attachments}
        return Read(answer, rest, {key: metrics[key] for key in metrics if key not in used})


def _count(metrics: MetricRecord, key: str) -> int:
    value = metrics.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{key!r} = {shown(value)}, not a whole number")
    if not 0 <= value <= LARGEST_COUNT:
        raise ValueError(f"{key!r} = {shown(value)}, not a number from 0 to {LARGEST_COUNT}")
    return value


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
