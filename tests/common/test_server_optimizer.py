"""Momentum and Adam on the aggregate, by hand."""

from math import sqrt
from types import SimpleNamespace

import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from erosion_common.aggregation.cohort import Cohort
from erosion_common.algorithms.base import Algorithm, Answers, RoundStart, SiteAnswer, Step
from erosion_common.algorithms.bias_correction import BiasCorrection
from erosion_common.algorithms.fedlin import FedLin
from erosion_common.algorithms.server_optimizer import (
    PlainStep,
    ServerAdagrad,
    ServerAdam,
    ServerMomentum,
    ServerOptimizer,
    ServerYogi,
)
from tests.support.contexts import CONTEXT
from tests.support.hand_sized import course, of_values


def summing() -> Algorithm[int]:
    """A method whose aggregate is the user's update; it skips the rounds in which that is 0."""

    def step(state: int, cohort: Cohort) -> Step[int]:
        moved = bool(cohort.own.delta.any())
        return Step(
            cohort.own.delta, {}, state + moved, outcome="done" if moved else "skipped", note="x"
        )

    return Algorithm(lambda _dim: 0, step, asks=lambda state, agent: state < 2 or agent == "a")


def test_no_optimizer_leaves_the_method_as_it_is() -> None:
    method = summing()
    assert PlainStep().wrap(method) is method


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
