"""Weighted gradient averaging by hand, and its estimates on the noisy quadratic."""

import math

import pytest
import torch

from erosion_common.aggregation.cohort import MemoryCohort, Update
from erosion_common.algorithms.fedavg import FedAvg
from erosion_common.algorithms.local import Local
from erosion_common.algorithms.weighted_gradient import (
    Variation,
    WeightedGradient,
    estimated_alpha,
    nothing_seen,
    observe,
)
from tests.support.contexts import CONTEXT, context
from tests.support.hand_sized import cohort, course, of_values, update


@pytest.mark.parametrize(
    ("alpha", "delta", "weights"),
    [
        # u = (4, 0), m = ((0, 3) + (2, 1)) / 2 = (1, 2)
        (0.0, [4.0, 0.0], {"own": 1.0, "a": 0.0, "b": 0.0}),
        (0.25, [3.25, 0.5], {"own": 1.0, "a": 1 / 6, "b": 1 / 6}),  # .125 / .75
        (0.5, [2.5, 1.0], {"own": 1.0, "a": 0.5, "b": 0.5}),
        (1.0, [1.0, 2.0], {"own": 0.0, "a": 1.0, "b": 1.0}),  # the user is left out
    ],
)
def test_a_fixed_alpha_mixes_the_users_update_with_the_average(
    alpha: float, delta: list[float], weights: dict[str, float]
) -> None:
    algorithm = WeightedGradient(alpha=alpha).build(CONTEXT)
    [step] = course(
        algorithm, cohort(update("own", 4.0, 0.0), update("a", 0.0, 3.0), update("b", 2.0, 1.0))
    )
    assert step.delta.tolist() == pytest.approx(delta)
    assert step.weights == pytest.approx(weights)


def test_three_rounds_of_auto_by_hand() -> None:
    algorithm = WeightedGradient(horizon=2.0).build(CONTEXT)
    first, second, third = course(
        algorithm, of_values(1.0, 2.0, 4.0), of_values(3.0, 5.0, 5.0), of_values(2.0, 4.0, 4.0)
    )
    # Rounds 1 and 2: nothing was estimated yet, alpha = 2/3: the plain average.
    assert first.delta.tolist() == pytest.approx([7 / 3])
    assert second.delta.tolist() == pytest.approx([13 / 3])
    # From u = 1, 3 and m = 3, 5: V_0 = 2^2 / 2 = 2, V_a = 2^2 / 2 = 2, B^2 = (3-1)(5-3) = 4
    seen = second.state
    assert (seen.num_pairs, seen.own_variance, seen.average_variance, seen.squared_bias) == (
        1,
        2.0,
        2.0,
        4.0,
    )
    # Round 3: alpha = 2 / (2 + 2 + 2 4) = 1/6; 5/6 2 + 1/6 4 = 7/3
    assert third.delta.tolist() == pytest.approx([7 / 3])
    assert third.weights == pytest.approx({"own": 1.0, "a": 0.1, "b": 0.1})  # (1/12) / (5/6)
    # The new pair has V_0 = 1/2, V_a = 1/2, B^2 = 2 2 = 4; the plain mean of both pairs:
    assert third.state.own_variance == pytest.approx(1.25)
    assert third.state.average_variance == pytest.approx(1.25)
    assert third.state.squared_bias == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("num_rounds", "contraction", "horizon"),
    [(15, 0.1, 15.0), (3000, 0.1, 20.0), (3000, 0.5, 4.0)],  # at most 2 / contraction
)
def test_the_horizon_is_the_studys_rounds_or_as_long_as_an_error_is_remembered(
    num_rounds: int, contraction: float, horizon: float
) -> None:
    rounds = [of_values(1.0, 2.0, 4.0), of_values(3.0, 5.0, 5.0), of_values(2.0, 4.0, 4.0)]
    given = course(WeightedGradient(horizon=horizon).build(CONTEXT), *rounds)
    rule = WeightedGradient(contraction=contraction)
    of_study = course(rule.build(context(rounds=num_rounds)), *rounds)
    assert given[-1].delta.tolist() == of_study[-1].delta.tolist()


def test_rounds_with_different_hospitals_teach_nothing() -> None:
    seen = observe(nothing_seen(1), ("a", "b"), torch.tensor([1.0]), torch.tensor([3.0]))
    changed = observe(seen, ("a", "c"), torch.tensor([9.0]), torch.tensor([-9.0]))
    assert (changed.num_pairs, changed.own_variance, changed.squared_bias) == (0, 0.0, 0.0)
    again = observe(changed, ("a", "c"), torch.tensor([9.0]), torch.tensor([-7.0]))
    assert (again.num_pairs, again.own_variance, again.average_variance) == (1, 0.0, 2.0)


def test_a_bias_that_noise_outweighs_counts_as_none() -> None:
    seen = Variation(("a",), torch.zeros(1), torch.zeros(1), 3, 1.0, 1.0, -5.0)
    assert estimated_alpha(seen, num_peers=1, horizon=100.0) == 0.5


@pytest.mark.parametrize(
    ("zeta", "horizon", "counted"),
    [
        (0.5, 20.0, 20.0),
        (1.0, 1.0, 1.0),
        (0.3, None, 20.0),  # of a thousand rounds: 2 / contraction, alpha = .345 and not .010
    ],
)
def test_auto_finds_the_alpha_of_the_noisy_quadratic(
    zeta: float, horizon: float | None, counted: float
) -> None:
    # a = a_1 = 1, eta = .1, sigma = 1, N = 10; one coordinate per trial.
    num_peers, trials, eta = 10, 4000, 0.1
    algorithm = WeightedGradient(horizon=horizon).build(context(rounds=1000))
    random = torch.Generator().manual_seed(1)
    x, state = torch.zeros(trials), algorithm.init(trials)
    for number in range(60):
        noise = torch.randn(num_peers + 1, trials, generator=random)
        updates = [
            Update(f"{i:02}", number, -eta * (x - (zeta if i else 0.0) + noise[i]), 1, 1)
            for i in range(num_peers + 1)
        ]
        step = algorithm.update(state, MemoryCohort(updates[0], {u.agent: u for u in updates[1:]}))
        x, state = x + step.delta, step.state
    share = sum(w for agent, w in step.weights.items() if agent != "00")
    alpha = share / (1 + share)
    # sigma^2 / (sigma^2 + sigma^2 / N + T zeta^2)
    assert math.isclose(alpha, 1 / (1 + 1 / num_peers + counted * zeta**2), rel_tol=0.15)


# -- Federated averaging and local training, by hand ---------------------------------------------


def three_hospitals() -> MemoryCohort:
    own = Update("own", 1, torch.tensor([1.0, 0.0]), num_samples=10, samples_seen=5)
    near = Update("near", 1, torch.tensor([2.0, 1.0]), num_samples=20, samples_seen=5)
    far = Update("far", 1, torch.tensor([-1.0, 4.0]), num_samples=70, samples_seen=5)
    return MemoryCohort(own, {"near": near, "far": far})


@pytest.mark.parametrize(
    ("arm", "delta", "weights"),
    [
        # 0.1 (1, 0) + 0.2 (2, 1) + 0.7 (-1, 4) = (-0.2, 3); weights relative to the user's own
        (FedAvg(weighting="samples"), [-0.2, 3.0], {"own": 1.0, "near": 2.0, "far": 7.0}),
        # ((1, 0) + (2, 1) + (-1, 4)) / 3 = (2/3, 5/3)
        (FedAvg(weighting="uniform"), [2 / 3, 5 / 3], {"own": 1.0, "near": 1.0, "far": 1.0}),
        (Local(), [1.0, 0.0], {"own": 1.0, "near": 0.0, "far": 0.0}),
    ],
)
def test_one_round_by_hand(
    arm: FedAvg | Local, delta: list[float], weights: dict[str, float]
) -> None:
    algorithm = arm.build(CONTEXT)
    step = algorithm.update(algorithm.init(2), three_hospitals())
    assert step.delta.tolist() == pytest.approx(delta)
    assert step.weights == weights
    assert step.outcome == "done"
