"""Logs of what a hospital sent, with rounds of one study."""

from pathlib import Path

import torch
from flwr.app import Message

from erosion_client.records.audit_log import AuditLog
from erosion_common.protocol import wire
from erosion_common.protocol.messages import TrainReply, TrainRequest, TrainResult
from tests.support.small_study import make_study

UPDATE = torch.tensor([3.0, 4.0, 0.0, 0.0, 0.0, 0.0])


def request(round_number: int = 1) -> Message:
    """Asks for an update of that round."""
    asked = TrainRequest(make_study(), "fedavg", round_number, torch.zeros(6), None, "run-7")
    return Message(wire.Encoder().encode(asked), 1, wire.TRAIN)


def reply(to: Message, round_number: int = 1, noise: float | None = None) -> Message:
    """UPDATE, as the answer."""
    header = TrainReply(
        hospital="b",
        arm="fedavg",
        round=round_number,
        num_samples=20,
        samples_seen=8,
        seconds=0.1,
        noise_multiplier=noise,
    )
    return Message(wire.encode_result(TrainResult(header, UPDATE)), reply_to=to)


def sent(
    folder: Path, lines: int, *, hospital: str = "b", dataset: str = "d", noise: float | None = None
) -> Path:
    """A log with that number of lines."""
    with AuditLog(folder, hospital=hospital, dataset=lambda: dataset) as audit_log:
        for number in range(1, lines + 1):
            asked = request(number)
            audit_log.record(asked, reply(asked, number, noise), "small")
        return audit_log.path


def long_log(folder: Path, lines: int) -> list[str]:
    """A log in files of a few lines each; returns the hash after every line."""
    heads = []
    with AuditLog(folder, file_bytes=2000) as audit_log:
        for number in range(1, lines + 1):
            asked = request(number)
            audit_log.record(asked, reply(asked, number), "small")
            heads.append(audit_log.head)
    return heads
