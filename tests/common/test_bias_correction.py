"""Bias correction by hand, under changing membership, and its steady state on the quadratic."""

from typing import Any

import pytest
import torch
from torch import Tensor

from erosion_common.aggregation.cohort import MemoryCohort, Update
from erosion_common.algorithms.base import Algorithm
from erosion_common.algorithms.bias_correction import BiasCorrection, oracle
from erosion_common.algorithms.local import Local
from tests.support.contexts import CONTEXT
from tests.support.hand_sized import course, of_values


def built(**parameters: Any) -> Algorithm[Any]:
    """With the paper's c, a moving average from 0, unless `warm_up` is given."""
    return BiasCorrection.model_validate({"warm_up": False, **parameters}).build(CONTEXT)


@pytest.mark.parametrize("bias", ["average", "per_hospital"])
def test_the_bias_is_used_first_and_learned_after(bias: str) -> None:
    algorithm = built(alpha=0.5, beta=0.25, bias=bias)
    first, second, third = course(
        algorithm, of_values(2.0, 4.0, 8.0), of_values(1.0, 3.0, 7.0), of_values(0.0, 2.0, 2.0)
    )
    # Round 1: c = 0, so (2 + 6) / 2 = 4; then c = .25 (6 - 2) = 1
    assert first.delta.tolist() == pytest.approx([4.0])
    # Round 2: (1 + 5 - 1) / 2 = 2.5; then c = .75 1 + .25 (5 - 1) = 1.75
    assert second.delta.tolist() == pytest.approx([2.5])
    # Round 3: (0 + 2 - 1.75) / 2 = .125
    assert third.delta.tolist() == pytest.approx([0.125])
    assert third.weights == pytest.approx({"own": 1.0, "a": 0.5, "b": 0.5})


def test_auto_is_the_papers_alpha_and_beta() -> None:
    algorithm = built(contraction=0.5)
    first, second = course(algorithm, of_values(0.0, 3.0, 6.0), of_values(0.0, 3.0, 6.0))
    # N = 2: alpha = 2/3, beta = .5 / 2 = 1/4; round 1: 2/3 4.5 = 3, c = 4.5 / 4
    assert first.delta.tolist() == pytest.approx([3.0])
    assert first.state.bias.tolist() == pytest.approx([1.125])
    # Round 2: 2/3 (4.5 - 1.125) = 2.25
    assert second.delta.tolist() == pytest.approx([2.25])
    assert second.weights == pytest.approx({"own": 1.0, "a": 1.0, "b": 1.0})


def test_warming_up_the_bias_is_the_mean_of_all_rounds_at_first() -> None:
    algorithm = built(alpha=1.0, beta=0.4, warm_up=True)
    steps = course(algorithm, *(of_values(0.0, m) for m in (2.0, 6.0, 5.0)))
    # 1/1 2 = 2; (2 + 6) / 2 = 4; from the third round on beta = .4 > 1/3: .6 4 + .4 5 = 4.4
    assert [float(s.state.bias) for s in steps] == pytest.approx([2.0, 4.0, 4.4])


def learned(bias: str) -> Any:
    """The state after long enough with a (bias 2) and b (bias 6)."""
    return course(built(beta=0.5, bias=bias), *[of_values(1.0, 3.0, 7.0)] * 40)[-1].state


def test_one_average_bias_is_wrong_for_a_while_when_a_hospital_leaves() -> None:
    algorithm, state = built(beta=0.5, bias="average"), learned("average")
    assert float(state.bias) == pytest.approx(4.0)
    # Only a is there: alpha = 1/2, but c = 4 is still that of a and b: (1 + 3 - 4) / 2 = 0, not 1
    step = algorithm.update(state, of_values(1.0, 3.0))
    assert step.delta.tolist() == pytest.approx([0.0])
    # c halves its error each round: 4 -> 3 -> 2.5
    assert float(step.state.bias) == pytest.approx(3.0)
    again = algorithm.update(step.state, of_values(1.0, 3.0))
    assert again.delta.tolist() == pytest.approx([0.5])
    assert float(again.state.bias) == pytest.approx(2.5)


def test_a_bias_per_hospital_stays_right_when_a_hospital_leaves_and_returns() -> None:
    algorithm, state = built(beta=0.5, bias="per_hospital"), learned("per_hospital")
    assert {a: float(c) for a, c in state.biases.items()} == pytest.approx({"a": 2.0, "b": 6.0})
    without = algorithm.update(state, of_values(1.0, 3.0))
    assert without.delta.tolist() == pytest.approx([1.0])  # (1 + 3 - 2) / 2
    assert float(without.state.biases["b"]) == pytest.approx(6.0)  # b's is kept
    back = algorithm.update(without.state, of_values(1.0, 3.0, 7.0))
    assert back.delta.tolist() == pytest.approx([1.0])  # (1 + (3 - 2) + (7 - 6)) / 3


def test_a_newcomers_own_bias_starts_at_zero_and_touches_nobody_elses() -> None:
    algorithm, state = built(beta=0.5, bias="per_hospital"), learned("per_hospital")
    step = algorithm.update(state, of_values(1.0, 3.0, 7.0, 9.0))
    # (1 + (3 - 2) + (7 - 6) + 9) / 4 = 3: c of the newcomer is not known yet
    assert step.delta.tolist() == pytest.approx([3.0])
    after = {agent: float(c) for agent, c in step.state.biases.items()}
    assert after == pytest.approx({"a": 2.0, "b": 6.0, "c": 4.0})  # .5 (9 - 1)


def test_the_oracle_subtracts_what_it_is_told() -> None:
    algorithm = oracle(lambda round_number: torch.tensor([10.0 * round_number]), alpha=0.5)
    first, second = course(algorithm, of_values(2.0, 4.0), of_values(2.0, 4.0))
    assert first.delta.tolist() == pytest.approx([-2.0])  # (2 + 4 - 10) / 2
    assert second.delta.tolist() == pytest.approx([-7.0])  # (2 + 4 - 20) / 2


# -- The noisy quadratic: f_0 = a x^2 / 2, f_i = a (x - x*)^2 / 2, Gaussian gradient noise ------

ETA, ZETA, NUM_PEERS, TRIALS = 0.1, 1.0, 5, 1000  # a = 1, sigma = 1; a trial is a coordinate


def steady_loss(algorithm: Algorithm[Any], rounds: int, averaged: int, seed: int = 1) -> float:
    """The user's mean loss over trials and the last rounds."""
    random = torch.Generator().manual_seed(seed)
    names = [f"h{i}" for i in range(NUM_PEERS + 1)]
    x: Tensor = torch.zeros(TRIALS)
    state = algorithm.init(TRIALS)
    total = 0.0
    for number in range(1, rounds + 1):
        gradients = x + torch.randn(NUM_PEERS + 1, TRIALS, generator=random)
        gradients[1:] -= ZETA  # x* = zeta / a
        updates = [
            Update(name, number, -ETA * gradient, 1, 1)
            for name, gradient in zip(names, gradients, strict=True)
        ]
        step = algorithm.update(state, MemoryCohort(updates[0], {u.agent: u for u in updates[1:]}))
        x, state = x + step.delta, step.state
        if number > rounds - averaged:
            total += float((x * x).mean()) / 2
    return total / averaged


@pytest.mark.parametrize("bias", ["average", "per_hospital"])
@pytest.mark.parametrize("beta", [0.1, ETA / NUM_PEERS])
def test_the_steady_state_follows_the_law(beta: float, bias: str) -> None:
    alone = steady_loss(Local().build(CONTEXT), 150, 100)
    # eta sigma^2 / (2 (2 - eta a)) = .0263
    assert alone == pytest.approx(ETA / (2 * (2 - ETA)), rel=0.03)
    corrected = steady_loss(built(beta=beta, bias=bias), 450, 200)
    # BC / alone = 1 / (N + 1) + N / (N + 1) beta / (beta + eta a)
    law = 1 / (NUM_PEERS + 1) + NUM_PEERS / (NUM_PEERS + 1) * beta / (beta + ETA)
    assert corrected / alone == pytest.approx(law, rel=0.08)
