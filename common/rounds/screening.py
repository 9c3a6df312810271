"""Screens hospitals' answers: the same rules in simulation and deployment."""

import math
from collections.abc import Mapping
from types import MappingProxyType

import torch

from erosion.common.aggregation.cohort import HospitalName, Update
from erosion.common.aggregation.vectors import is_finite, norm
from erosion.common.protocol.messages import TrainResult
from erosion.common.rounds.one_round import Answer, Rejection

MOST_SAMPLES = 2**53  # beyond, a count is no longer exact as a float64


def screen(
    result: TrainResult,
    *,
    agent: HospitalName,
    arm: str,
    round_number: int,
    dim: int,
    max_norm: float | None = None,
    attachment_sizes: Mapping[str, int] = MappingProxyType({}),
) -> Answer:
    """The update of `agent`, or the reason why its answer cannot be used.

    `max_norm` bounds the Euclidean norm of the update; None: any finite one is accepted.
    `attachment_sizes` says what the update must bring beside its delta; nothing else is kept.
    """
    header, delta = result.header, result.delta
    if header.hospital != agent:
        return Rejection(f"answered as {header.hospital!r}")
    if header.arm != arm:
        return Rejection(f"arm {header.arm!r}, expected {arm!r}")
    if header.round != round_number:
        return Rejection(f"round {header.round}, expected {round_number}")
    for count, what in (
        (header.num_samples, "samples"),
        (header.samples_seen, "samples used in the round"),
    ):
        if count < 1:
            return Rejection(f"{count} {what}, expected at least 1")
        if count > MOST_SAMPLES:
            return Rejection(f"more than {MOST_SAMPLES} {what}")
    if delta.shape != (dim,):
        return Rejection(f"shape {tuple(delta.shape)}, expected ({dim},)")
    if delta.dtype != torch.float32:
        return Rejection(f"numbers of type {delta.dtype}, expected torch.float32")
    for name, size in attachment_sizes.items():
        if name not in result.attachments:
            return Rejection(f"without the attachment {name!r}")
        if (shape := result.attachments[name].shape) != (size,):
            return Rejection(f"{name!r} of shape {tuple(shape)}, expected ({size},)")
    attachments = {name: result.attachments[name] for name in attachment_sizes}
    if not all(is_finite(values) for values in (delta, *attachments.values())):
        return Rejection("a value that is not finite")
    if not (length := norm(delta)) <= (math.inf if max_norm is None else max_norm):
        return Rejection(f"norm {length:.4g}, at most {max_norm:g} is accepted")
    return Update(
        agent=agent,
        round=header.round,
        delta=delta,
        num_samples=header.num_samples,
        samples_seen=header.samples_seen,
        attachments=attachments,
    )
