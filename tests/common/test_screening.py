"""Answers that can be used, and those that cannot."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from erosion.common.aggregation.cohort import Update
from erosion.common.algorithms.base import Brings, TensorTerms
from erosion.common.protocol.messages import TrainReply, TrainResult
from erosion.common.rounds.one_round import Answer, Rejection
from erosion.common.rounds.screening import MOST_SAMPLES, Expected, screen


def answered(
    delta: Tensor,
    *,
    hospital: str = "a",
    arm: str = "fedavg",
    round_number: int = 1,
    num_samples: int = 10,
    samples_seen: int = 8,
) -> TrainResult:
    header = TrainReply(
        hospital=hospital,
        arm=arm,
        round=round_number,
        num_samples=num_samples,
        samples_seen=samples_seen,
        seconds=0.1,
    )
    return TrainResult(header, delta, {"radius": torch.ones(1)})


def screened(result: TrainResult) -> Answer:
    return screen(result, "a", Expected("fedavg", round=1, dim=2))


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


def test_a_sound_answer_becomes_an_update() -> None:
    delta = numbers(1.0, 2.0)
    update = screened(answered(delta))
    assert isinstance(update, Update)
    assert (update.agent, update.round) == ("a", 1)
    assert (update.num_samples, update.samples_seen) == (10, 8)
    assert update.delta is delta  # no copy
    assert update.attachments == {}  # what was not asked for is not kept


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (answered(numbers(1, 2), hospital="b"), "answered as 'b'"),
        (answered(numbers(1, 2), arm="local"), "arm 'local', expected 'fedavg'"),
        (answered(numbers(1, 2), round_number=3), "round 3, expected 1"),
        (answered(numbers(1, 2), num_samples=0), "0 samples, expected at least 1"),
        (answered(numbers(1, 2), num_samples=-4), "-4 samples, expected at least 1"),
        (answered(numbers(1, 2), num_samples=10**400), f"more than {MOST_SAMPLES} samples"),
        (
            answered(numbers(1, 2), samples_seen=0),
            "0 samples used in the round, expected at least 1",
        ),
        (
            answered(numbers(1, 2), samples_seen=10**400),
            f"more than {MOST_SAMPLES} samples used in the round",
        ),
        (answered(numbers(1, 2, 3)), "shape (3,), expected (2,)"),
        (answered(torch.zeros(2, 1)), "shape (2, 1), expected (2,)"),
        (answered(numbers(1, math.nan)), "a value that is not finite"),
        (answered(numbers(1, math.inf)), "a value that is not finite"),
        (answered(numbers(-math.inf, math.inf)), "a value that is not finite"),
        (answered(torch.tensor([1, 2])), "numbers of type torch.int64, expected torch.float32"),
    ],
)
def test_a_faulty_answer_is_rejected_with_its_reason(result: TrainResult, reason: str) -> None:
    assert screened(result) == Rejection(reason)


def test_the_largest_float32_values_are_finite() -> None:
    assert isinstance(screened(answered(numbers(3e38, -3e38))), Update)


@given(
    shape=st.lists(st.integers(0, 3), max_size=3),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.int64, torch.bool, torch.complex64]),
    round_number=st.integers(),
    num_samples=st.integers(),
    samples_seen=st.integers(),
)
def test_screening_answers_whatever_a_hospital_sends(
    shape: list[int], dtype: torch.dtype, round_number: int, num_samples: int, samples_seen: int
) -> None:
    result = answered(
        torch.zeros(shape, dtype=dtype),
        round_number=round_number,
        num_samples=num_samples,
        samples_seen=samples_seen,
    )
    assert isinstance(screened(result), Update | Rejection)


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ({"radius": 1}, None),
        ({"noise": 1}, "without the attachment 'noise'"),
        ({"radius": 2}, "'radius' of shape (1,), expected (2,)"),
    ],
)
def test_an_update_must_bring_what_its_method_needs(
    sizes: dict[str, int], reason: str | None
) -> None:
    terms = {name: TensorTerms((size,)) for name, size in sizes.items()}
    expected = Expected("fedavg", 1, 2, brings=Brings(update=True, tensors=terms))
    answer = screen(answered(torch.ones(2)), "a", expected)
    assert answer == Rejection(reason) if reason else isinstance(answer, Update)
