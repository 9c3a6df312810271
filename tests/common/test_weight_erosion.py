"""Weight Erosion: equations 4 to 6 by hand, its corner cases, and a second implementation."""

from collections.abc import Mapping, Sequence
from math import ceil, floor

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from erosion_common.aggregation.cohort import Update
from erosion_common.algorithms.weight_erosion import SizeUnit, WeightErosion, WeightErosionState
from tests.support.contexts import CONTEXT
from tests.support.hand_sized import cohort, update


def known(**weights: float) -> WeightErosionState:
    return WeightErosionState(
        round=5,
        weights=weights,
        samples_seen=dict.fromkeys(weights, 50),
        betas=dict.fromkeys(weights, 1.0),
        paths=(),
    )


def test_three_rounds_by_hand() -> None:
    algorithm = WeightErosion(distance_penalty=0.1, size_penalty=0.5).build(CONTEXT)
    own = update("own", 3.0, 4.0)  # |g_0| = 5
    near = update("near", 3.0, 5.0, num_samples=10)  # |(0, 1)| / 5 = 0.2
    far = update("far", -3.0, 4.0, num_samples=20)  # |(-6, 0)| / 5 = 1.2
    every_round = cohort(own, near, far)

    # Round 1, nothing seen: k = 0 for both.
    first = algorithm.update(algorithm.init(2), every_round)
    # near 1 - 0.1 0.2 = 0.98; far 1 - 0.1 1.2 = 0.88
    assert first.weights == pytest.approx({"own": 1.0, "near": 0.98, "far": 0.88})
    # ((3, 4) + 0.98 (3, 5) + 0.88 (-3, 4)) / (1 + 0.98 + 0.88) = (3.30, 12.42) / 2.86
    assert first.delta.tolist() == pytest.approx([3.30 / 2.86, 12.42 / 2.86])

    # Round 2: 10 samples each were seen, so k = 10 // 10 = 1 for near and 10 // 20 = 0 for far.
    second = algorithm.update(first.state, every_round)
    # near 0.98 - 1.5 0.02 = 0.95; far 0.88 - 0.12 = 0.76
    assert second.weights == pytest.approx({"own": 1.0, "near": 0.95, "far": 0.76})
    # ((3, 4) + 0.95 (3, 5) + 0.76 (-3, 4)) / 2.71 = (3.57, 11.79) / 2.71
    assert second.delta.tolist() == pytest.approx([3.57 / 2.71, 11.79 / 2.71])

    # Round 3: k = 20 // 10 = 2 for near and 20 // 20 = 1 for far.
    third = algorithm.update(second.state, every_round)
    # near 0.95 - 2 0.02 = 0.91; far 0.76 - 1.5 0.12 = 0.58
    assert third.weights == pytest.approx({"own": 1.0, "near": 0.91, "far": 0.58})
    # ((3, 4) + 0.91 (3, 5) + 0.58 (-3, 4)) / 2.49 = (3.99, 10.87) / 2.49
    assert third.delta.tolist() == pytest.approx([3.99 / 2.49, 10.87 / 2.49])
    assert third.state.round == 3
    assert third.state.samples_seen == {"near": 30, "far": 30}


def test_without_a_batch_size_the_rounds_samples_count_as_b() -> None:
    algorithm = WeightErosion(distance_penalty=0.01, size_penalty=1.0, size_unit="formula").build(
        CONTEXT
    )
    peer = update("peer", 6.0, 8.0, num_samples=10, samples_seen=25)
    state = algorithm.init(2)
    for _ in range(2):
        step = algorithm.update(state, cohort(update("own", 3.0, 4.0), peer))
        state = step.state
    # round 1: k = 0; round 2: k = 1 25 // 10 = 2: 1 - 0.01 - 0.03
    assert step.weights["peer"] == pytest.approx(0.96)


def test_a_weight_stops_at_zero_and_the_hospital_is_asked_no_more() -> None:
    algorithm = WeightErosion(distance_penalty=0.6).build(CONTEXT)
    own, across = update("own", 3.0, 4.0), update("across", -3.0, 4.0)  # d = 1.2, p_d d = 0.72
    first = algorithm.update(algorithm.init(2), cohort(own, across))
    assert first.weights["across"] == pytest.approx(0.28)
    assert algorithm.asks(first.state, "across")
    second = algorithm.update(first.state, cohort(own, across))
    assert second.weights["across"] == 0.0
    assert not algorithm.asks(second.state, "across")
    assert torch.equal(second.delta, own.delta)
    third = algorithm.update(second.state, cohort(own, update("across", 3.0, 4.0)))  # d = 0
    assert third.weights["across"] == 0.0


@pytest.mark.parametrize(
    ("newcomer", "weights", "expected"),
    [
        ("median", {"b": 0.9, "c": 0.8, "d": 0.1}, 0.85),
        ("median", {"b": 0.9, "c": 0.0}, 0.9),  # eroded hospitals count
        ("mean", {"b": 0.0, "c": 0.0}, 1 / 3),
    ],
)
def test_a_late_joiner_starts_from_the_others(
    newcomer: str, weights: dict[str, float], expected: float
) -> None:
    algorithm = WeightErosion.model_validate({"newcomer": newcomer}).build(CONTEXT)
    own, late = update("own", 3.0, 4.0), update("late", 3.0, 4.0)  # d = 0: nothing erodes
    step = algorithm.update(known(**weights), cohort(own, late))
    assert step.weights["late"] == pytest.approx(expected)
    assert step.state.samples_seen["late"] == 10


def test_a_twin_that_comes_when_all_others_are_eroded_is_asked() -> None:
    algorithm = WeightErosion().build(CONTEXT)
    own, twin = update("own", 3.0, 4.0), update("twin", 3.0, 4.0)
    step = algorithm.update(known(b=0.0, c=0.0, d=0.0), cohort(own, twin))
    assert step.weights["twin"] == pytest.approx(0.25)
    assert algorithm.asks(step.state, "twin")


def test_freezing_leaves_everything_where_the_users_update_is_zero() -> None:
    before = known(peer=0.7)
    algorithm = WeightErosion(zero_norm="freeze").build(CONTEXT)
    step = algorithm.update(before, cohort(update("own", 0.0, 0.0), update("peer", 1.0, 0.0)))
    assert step.outcome == "skipped"
    assert "norm zero" in step.note
    # Weights stay; the round's samples were trained on, so they count as seen.
    assert step.state.weights == before.weights
    assert step.state.samples_seen == {"peer": 60}
    assert step.state.round == before.round + 1
    assert step.weights == {"own": 1.0, "peer": 0.7}
    assert step.delta.tolist() == [0.0, 0.0]


def test_eroding_takes_all_weight_where_the_users_update_is_zero() -> None:
    algorithm = WeightErosion(zero_norm="erode").build(CONTEXT)
    step = algorithm.update(
        known(peer=0.7, away=0.5), cohort(update("own", 0.0, 0.0), update("peer", 1.0, 0.0))
    )
    assert step.outcome == "done"
    assert step.weights == {"own": 1.0, "peer": 0.0, "away": 0.5}  # away was not there to compare
    assert not algorithm.asks(step.state, "peer")
    assert step.state.round == 6
    assert step.delta.tolist() == [0.0, 0.0]


def test_stopping_ends_the_run_where_the_users_update_is_zero() -> None:
    before = known(peer=0.7)
    algorithm = WeightErosion(zero_norm="stop").build(CONTEXT)
    step = algorithm.update(before, cohort(update("own", 0.0, 0.0), update("peer", 1.0, 0.0)))
    assert step.outcome == "stopped"
    assert step.state.weights == before.weights


def test_an_update_up_to_the_bound_counts_as_zero() -> None:
    algorithm = WeightErosion(zero_norm_below=0.1).build(CONTEXT)
    peer = update("peer", 1.0)
    assert algorithm.update(algorithm.init(1), cohort(update("own", 0.09), peer)).outcome != "done"
    assert algorithm.update(algorithm.init(1), cohort(update("own", 0.11), peer)).outcome == "done"


# -- A second implementation, straight from the paper, in float64 numpy -----------------------

Answer = tuple[NDArray[np.float32], int, int]  # g_i, |S_i|, samples seen this round


def paper(
    rounds: Sequence[Mapping[str, Answer]], *, p_d: float, p_s: float, b: int, unit: str
) -> list[tuple[dict[str, float], NDArray[np.float64]]]:
    """(alpha after, aggregate) of every round."""
    alpha: dict[str, float] = {}
    seen: dict[str, int] = {}
    course = []
    for r, answers in enumerate(rounds, start=1):
        g_0 = answers["user"][0].astype(np.float64)
        start = float(np.mean([1.0, *alpha.values()]))  # alpha_0 = 1 among them
        numerator, denominator = g_0.copy(), 1.0
        new = {}
        for i, (delta, size, used) in answers.items():
            if i == "user":
                continue
            g_i = delta.astype(np.float64)
            d = np.linalg.norm(g_i - g_0) / np.linalg.norm(g_0)
            k = {
                "formula": floor((r - 1) * b / size),
                "seen": floor(seen.get(i, 0) / size),
                "completed_passes": floor(r / ceil(size / b)),
                "batches": floor((r - 1) * b / ceil(size / b)),
            }[unit]
            new[i] = max(0.0, alpha.get(i, start) - (1 + p_s * k) * p_d * float(d))
            numerator += new[i] * g_i
            denominator += new[i]
            seen[i] = seen.get(i, 0) + used
        alpha |= new
        course.append((dict(alpha), numerator / denominator))
    return course


@pytest.mark.parametrize("unit", ["seen", "formula", "completed_passes", "batches"])
@given(
    seed=st.integers(0, 2**32 - 1),
    p_d=st.sampled_from([0.0, 0.01, 0.1, 0.5]),
    p_s=st.sampled_from([0.0, 0.2, 2.0]),
    b=st.integers(1, 40),
)
def test_random_rounds_agree_with_the_papers_formula(
    unit: SizeUnit, seed: int, p_d: float, p_s: float, b: int
) -> None:
    rng = np.random.default_rng(seed)
    sizes = {name: int(rng.integers(1, 60)) for name in ("user", "a", "b", "c", "d")}
    rounds: list[dict[str, Answer]] = [
        {
            name: (rng.normal(1.0, 0.5, 6).astype(np.float32), size, int(rng.integers(1, 50)))
            for name, size in sizes.items()
            if name == "user" or rng.random() < 0.7  # absent now and then, and late joiners
        }
        for _ in range(8)
    ]
    algorithm = WeightErosion(
        distance_penalty=p_d, size_penalty=p_s, size_unit=unit, batch_size=b
    ).build(CONTEXT)
    state = algorithm.init(6)
    expected = paper(rounds, p_d=p_d, p_s=p_s, b=b, unit=unit)
    for answers, (alpha, aggregate) in zip(rounds, expected, strict=True):
        updates = [
            Update(name, 1, torch.from_numpy(g), size, used)
            for name, (g, size, used) in answers.items()
        ]
        step = algorithm.update(state, cohort(*updates))
        state = step.state
        assert step.weights == pytest.approx({"user": 1.0} | alpha, abs=1e-5)
        np.testing.assert_allclose(step.delta.numpy(), aggregate, atol=1e-5)
