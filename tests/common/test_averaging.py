"""Methods by hand: averages weighted by estimates or corrected for bias, and server optimisers."""

from math import sqrt
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from erosion_common.aggregation.cohort import Cohort, MemoryCohort, Update
from erosion_common.algorithms.base import Algorithm, Answers, RoundStart, SiteAnswer, Step
from erosion_common.algorithms.bias_correction import BiasCorrection
from erosion_common.algorithms.fedavg import FedAvg
from erosion_common.algorithms.fedlin import FedLin
from erosion_common.algorithms.local import Local
from erosion_common.algorithms.server_optimizer import (
    ServerAdagrad,
    ServerAdam,
    ServerMomentum,
    ServerOptimizer,
    ServerYogi,
)
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


# -- Momentum and Adam on the aggregate, by hand ---------------------------------------------------


def summing() -> Algorithm[int]:
    """A method whose aggregate is the user's update; it skips the rounds in which that is 0."""

    def step(state: int, cohort: Cohort) -> Step[int]:
        moved = bool(cohort.own.delta.any())
        return Step(
            cohort.own.delta, {}, state + moved, outcome="done" if moved else "skipped", note="x"
        )

    return Algorithm(lambda _dim: 0, step, asks=lambda state, agent: state < 2 or agent == "a")


def test_momentum_adds_the_earlier_aggregates() -> None:
    algorithm = ServerMomentum(momentum=0.5, learning_rate=2.0).wrap(summing())
    steps = course(algorithm, of_values(1.0), of_values(3.0), of_values(-1.0))
    # m = 1, .5 + 3 = 3.5, 1.75 - 1 = .75; twice that
    assert [float(s.delta) for s in steps] == pytest.approx([2.0, 7.0, 1.5])


def test_adam_divides_by_the_size_of_earlier_aggregates() -> None:
    algorithm = ServerAdam(learning_rate=1.0, beta_1=0.5, beta_2=0.75, adaptivity=1.0).wrap(
        summing()
    )
    steps = course(algorithm, of_values(2.0), of_values(4.0))
    # m = 1, v = .25 4 = 1: 1 / (1 + 1); m = .5 + 2 = 2.5, v = .75 + .25 16 = 4.75
    assert [float(s.delta) for s in steps] == pytest.approx([0.5, 2.5 / (sqrt(4.75) + 1)])


def test_yogi_forgets_a_large_aggregate_slowly() -> None:
    algorithm = ServerYogi(learning_rate=1.0, beta_1=0.5, beta_2=0.75, adaptivity=1.0).wrap(
        summing()
    )
    steps = course(algorithm, of_values(4.0), of_values(2.0))
    # m = 2, v = 0 + .25 16 = 4: 2 / 3; m = 1 + 1 = 2, v = 4 - 0 (4 is 2 squared): 2 / 3
    assert [float(s.delta) for s in steps] == pytest.approx([2 / 3, 2 / 3])
    third = algorithm.update(steps[-1].state, of_values(0.5))
    # m = 1.25, v = 4 - .25 .25 = 3.9375: below v, so it falls by a share of the square
    assert float(third.delta) == pytest.approx(1.25 / (sqrt(3.9375) + 1))


def test_adagrad_adds_up_all_squares() -> None:
    algorithm = ServerAdagrad(learning_rate=2.0, adaptivity=1.0).wrap(summing())
    steps = course(algorithm, of_values(3.0), of_values(4.0))
    # v = 9: 2 3 / (3 + 1); v = 25: 2 4 / (5 + 1)
    assert [float(s.delta) for s in steps] == pytest.approx([1.5, 8 / 6])


def test_a_method_with_two_exchanges_can_have_an_optimizer() -> None:
    rule = FedLin(server_optimizer=ServerMomentum(momentum=0.5))
    algorithm = rule.build(CONTEXT)
    state = algorithm.init(1)
    moves = []
    for _ in range(2):
        begun = RoundStart(1, "own", ("own", "a"), torch.zeros(1))
        round_ = algorithm.begin(state, begun)
        assert next(round_).step == "gradient"
        gradients = {
            name: SiteAnswer({"gradient": torch.ones(1)}, SimpleNamespace(num_samples=1))
            for name in ("own", "a")
        }
        assert round_.send(Answers(gradients, {})).step == "train"
        with pytest.raises(StopIteration) as finished:
            round_.send(Answers({}, {}, of_values(1.0, 3.0)))
        state = finished.value.value.state
        moves.append(float(finished.value.value.delta))
    assert moves == pytest.approx([2.0, 3.0])  # 2, and 2 + half of it


def test_a_skipped_round_leaves_the_moments_alone() -> None:
    algorithm = ServerMomentum(momentum=0.5).wrap(summing())
    steps = course(algorithm, of_values(1.0), of_values(0.0), of_values(1.0))
    assert [s.outcome for s in steps] == ["done", "skipped", "done"]
    assert (steps[1].note, float(steps[1].delta)) == ("x", 0.0)
    assert float(steps[2].delta) == pytest.approx(1.5)


def test_the_method_still_decides_who_is_asked() -> None:
    algorithm = ServerAdam().wrap(summing())
    last = course(algorithm, of_values(1.0), of_values(1.0))[-1]
    assert algorithm.asks(last.state, "a")
    assert not algorithm.asks(last.state, "b")


def test_a_study_can_name_it_in_short_or_in_full() -> None:
    short = BiasCorrection.model_validate({"server_optimizer": "adam"})
    assert short.server_optimizer == ServerAdam()
    full = {"server_optimizer": {"name": "momentum", "momentum": 0.5}}
    assert BiasCorrection.model_validate(full).server_optimizer == ServerMomentum(momentum=0.5)
    read = TypeAdapter[ServerOptimizer](ServerOptimizer)
    with pytest.raises(ValidationError):
        read.validate_python("sgd")
    with pytest.raises(ValidationError):
        read.validate_python({"name": "momentum", "momentum": 1.0})


# -- Bias correction, under changing membership ----------------------------------------------------


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
