"""Screens hospitals' answers: the same rules in simulation and deployment."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from pydantic import ValidationError
from torch import Tensor

from erosion.common.aggregation.cohort import HospitalName, Update
from erosion.common.aggregation.vectors import is_finite, norm
from erosion.common.algorithms.base import TRAIN, UPDATES, Brings, SiteAnswer, TensorTerms
from erosion.common.protocol.messages import StepResult, TrainResult
from erosion.common.rounds.one_round import Answer, Rejection

MOST_SAMPLES = 2**53  # beyond, a count is no longer exact as a float64


@dataclass(frozen=True, slots=True)
class Expected:
    """What the answers to one exchange must be."""

    arm: str
    round: int
    dim: int  # of the model's parameters
    step: str = TRAIN
    brings: Brings = UPDATES
    max_norm: float | None = None  # Euclidean, of an update; None: any finite one is accepted
    sealed: bool = False  # fresh keys come in place of the update


def screen(result: object, agent: HospitalName, expected: Expected) -> Answer:
    """What `agent` answered, or the reason why it cannot be used."""
    if not isinstance(result, TrainResult | StepResult):
        return Rejection(f"a {type(result).__name__}, expected the answer to {expected.step!r}")
    if isinstance(result, TrainResult) != expected.brings.update:
        what = "an update" if expected.brings.update else "none"
        return Rejection(f"a {type(result).__name__}, expected {what} for {expected.step!r}")
    header = result.header
    if header.hospital != agent:
        return Rejection(f"answered as {header.hospital!r}")
    if header.arm != expected.arm:
        return Rejection(f"arm {header.arm!r}, expected {expected.arm!r}")
    if header.round != expected.round:
        return Rejection(f"round {header.round}, expected {expected.round}")
    if header.step != expected.step:
        return Rejection(f"step {header.step!r}, expected {expected.step!r}")
    if isinstance(result, TrainResult):
        return _update(result, expected)
    return _step_answer(result, expected)


def _update(result: TrainResult, expected: Expected) -> Answer:
    header, delta = result.header, result.delta
    for count, what in (
        (header.num_samples, "samples"),
        (header.samples_seen, "samples used in the round"),
    ):
        if count < 1:
            return Rejection(f"{count} {what}, expected at least 1")
        if count > MOST_SAMPLES:
            return Rejection(f"more than {MOST_SAMPLES} {what}")
    if expected.sealed and header.sealed is None:
        return Rejection("no keys for a sealed round")
    dim = 0 if expected.sealed else expected.dim
    if delta.shape != (dim,):
        return Rejection(f"shape {tuple(delta.shape)}, expected ({dim},)")
    if delta.dtype != torch.float32:
        return Rejection(f"numbers of type {delta.dtype}, expected torch.float32")
    if not is_finite(delta):
        return Rejection("a value that is not finite")
    if problem := _problem_with(result.attachments, expected.brings.tensors):
        return Rejection(problem)
    limit = math.inf if expected.max_norm is None else expected.max_norm
    if not (length := norm(delta)) <= limit:
        return Rejection(f"norm {length:.4g}, at most {limit:g} is accepted")
    return Update(
        agent=header.hospital,
        round=header.round,
        delta=delta,
        num_samples=header.num_samples,
        samples_seen=header.samples_seen,
        attachments={name: result.attachments[name] for name in expected.brings.tensors},
        hello=header.sealed.hello if expected.sealed and header.sealed else None,
    )


def _step_answer(result: StepResult, expected: Expected) -> Answer:
    if problem := _problem_with(result.tensors, expected.brings.tensors):
        return Rejection(problem)
    values = None
    if (form := expected.brings.values) is not None:
        try:
            values = form.model_validate(result.header.values)
        except ValidationError as mismatch:
            first = mismatch.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            return Rejection(f"values whose {where or 'form'} is wrong: {first['msg']}")
    return SiteAnswer({name: result.tensors[name] for name in expected.brings.tensors}, values)


def _problem_with(tensors: Mapping[str, Tensor], terms: Mapping[str, TensorTerms]) -> str | None:
    for name, wanted in terms.items():
        if name not in tensors:
            return f"without the attachment {name!r}"
        tensor = tensors[name]
        shape = tuple(tensor.shape)
        if len(shape) != len(wanted.shape) or any(
            length not in (None, found) for length, found in zip(wanted.shape, shape, strict=True)
        ):
            return f"{name!r} of shape {shape}, expected {_in_words(wanted)}"
        if None in wanted.shape and tensor.numel() > wanted.most_values:
            return f"{name!r} of {tensor.numel()} values, at most {wanted.most_values} are accepted"
        if tensor.dtype != wanted.dtype:
            return f"{name!r} of type {tensor.dtype}, expected {wanted.dtype}"
        if tensor.dtype.is_floating_point and not is_finite(tensor.flatten()):
            return "a value that is not finite"
    return None


def _in_words(terms: TensorTerms) -> str:
    lengths = ["any" if length is None else str(length) for length in terms.shape]
    return f"({', '.join(lengths)}{',' if len(lengths) == 1 else ''})"
