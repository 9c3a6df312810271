"""The step from one round to the next, and its record."""

import pytest
import torch

from erosion_common.aggregation.cohort import HospitalName, Update
from erosion_common.algorithms.fedavg import FedAvg
from erosion_common.algorithms.weight_erosion import WeightErosion, WeightErosionState
from erosion_common.rounds.records import Absence, Answer, Rejection, RoundRecord, RunState
from erosion_common.rounds.round import first_state
from experiments.benchmarks.harness import advance
from tests.support.contexts import CONTEXT


def update(
    agent: HospitalName, *delta: float, round_number: int = 1, num_samples: int = 10, seen: int = 10
) -> Update:
    values = torch.tensor(delta, dtype=torch.float32)
    return Update(agent, round_number, values, num_samples, seen)


def fedavg_round(
    answers: dict[HospitalName, Answer], state: RunState | None = None, quorum: int = 1
) -> tuple[RunState, RoundRecord]:
    algorithm = FedAvg().build(CONTEXT)
    before = state or first_state(algorithm, torch.tensor([1.0, 1.0]))
    return advance(before, algorithm, answers, arm="fedavg", user="own", quorum=quorum)


def test_a_round_moves_the_parameters_by_the_aggregate() -> None:
    after, record = fedavg_round(
        {"own": update("own", 3.0, 4.0), "b": update("b", -3.0, 4.0, num_samples=30, seen=7)}
    )
    # 1/4 (3, 4) + 3/4 (-3, 4) = (-1.5, 4), from (1, 1)
    assert after.params.tolist() == [-0.5, 5.0]
    assert after.round == 1
    assert after.weights == {"own": 1.0, "b": 3.0}
    assert (record.arm, record.round, record.outcome, record.note) == ("fedavg", 1, "done", "")
    own, b = record.hospitals["own"], record.hospitals["b"]
    assert (own.outcome, own.distance, own.weight_after) == ("accepted", 0.0, 1.0)
    assert (b.outcome, b.distance) == ("accepted", 1.2)  # |(-6, 0)| / 5
    assert (b.weight_before, b.weight_after) == (None, 3.0)
    assert (b.num_samples, b.samples_seen) == (30, 7)


def test_an_absent_and_a_rejected_hospital_are_recorded_with_the_reason() -> None:
    first, _ = fedavg_round({"own": update("own", 1.0, 0.0), "b": update("b", 0.0, 1.0)})
    after, record = fedavg_round(
        {
            "own": update("own", 1.0, 0.0, round_number=2),
            "b": Absence("did not answer within 2 s"),
            "c": Rejection("round 1, expected 2"),
        },
        state=first,
    )
    b, c = record.hospitals["b"], record.hospitals["c"]
    assert (b.outcome, b.reason) == ("absent", "did not answer within 2 s")
    assert (b.weight_before, b.weight_after) == (1.0, 1.0)
    assert (c.outcome, c.reason) == ("rejected", "round 1, expected 2")
    assert (c.weight_before, c.weight_after, c.distance) == (None, None, None)
    assert after.weights == {"own": 1.0, "b": 1.0}


@pytest.mark.parametrize(
    "own",
    [None, Absence("an unexpected KeyError at the site"), Rejection("a value that is not finite")],
)
def test_a_round_without_the_user_is_skipped_and_the_parameters_stay(own: Answer | None) -> None:
    before, _ = fedavg_round({"own": update("own", 1.0, 0.0), "b": update("b", 0.0, 1.0)})
    answers: dict[HospitalName, Answer] = {"b": update("b", 5.0, 5.0, round_number=2)}
    if own is not None:
        answers["own"] = own
    after, record = fedavg_round(answers, state=before)
    assert (record.outcome, record.round) == ("skipped", 2)
    assert record.note.endswith(own.reason if own else "was not connected")
    assert torch.equal(after.params, before.params)
    assert after.weights == before.weights
    assert after.algorithm_state == before.algorithm_state
    assert (after.round, after.skipped_in_a_row) == (2, 1)


def test_finite_updates_whose_sum_overflows_skip_the_round() -> None:
    huge = {"own": update("own", 3e38, 0.0), "b": update("b", 3e38, 0.0)}
    before = RunState(0, torch.full((2,), 3e38), FedAvg().build(CONTEXT).init(2))
    after, record = fedavg_round(dict(huge), state=before)
    assert record.outcome == "skipped"
    assert torch.equal(after.params, before.params)


def erosion_state(**weights: float) -> RunState:
    return RunState(
        round=4,
        params=torch.zeros(2),
        algorithm_state=WeightErosionState(
            4, weights, dict.fromkeys(weights, 40), dict.fromkeys(weights, 1.0), ()
        ),
        weights={"own": 1.0, **weights},
    )


def test_a_frozen_round_counts_as_skipped_and_keeps_all_weights() -> None:
    before = erosion_state(b=0.5)
    after, record = advance(
        before,
        WeightErosion(zero_norm="freeze").build(CONTEXT),
        {
            "own": update("own", 0.0, 0.0),
            "b": update("b", 1.0, 0.0),
            "new": update("new", 1.0, 0.0),
        },
        arm="we",
        user="own",
        quorum=2,
    )
    assert record.outcome == "skipped"
    assert (after.round, after.skipped_in_a_row) == (5, 1)
    assert torch.equal(after.params, before.params)
    assert after.algorithm_state.weights == {**before.algorithm_state.weights, "new": 0.75}
    assert record.hospitals["b"].distance is None  # infinite, which JSON does not know
    assert record.hospitals["b"].weight_after == 0.5
