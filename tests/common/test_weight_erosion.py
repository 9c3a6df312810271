"""Weight Erosion: equations 4 to 6 by hand, its corner cases, and a second implementation."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import acos, ceil, degrees, floor, sqrt
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from erosion_common.aggregation.cohort import MemoryCohort, Update
from erosion_common.algorithms.base import Algorithm
from erosion_common.algorithms.weight_erosion import (
    PRESETS,
    SizeUnit,
    WeightErosion,
    WeightErosionState,
    half_angle,
    measure,
    weighted_places,
)
from erosion_common.errors import StudyError
from erosion_common.rounds.selection import SelectedSettings, chosen
from erosion_common.settings.base import validate
from erosion_common.study.study import Study, study_from_json
from experiments.papers.rules import EXPLORED, SLOW
from tests.support.contexts import CONTEXT, context
from tests.support.hand_sized import cohort, course, update
from tests.support.refusals import refused
from tests.support.small_study import make_study


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


def test_repeats_are_of_all_samples_of_a_hospital_that_counts_for_fewer() -> None:
    algorithm = WeightErosion(distance_penalty=0.01, size_penalty=1.0).build(CONTEXT)
    peer = replace(update("peer", 6.0, 8.0, num_samples=10, samples_seen=40), all_samples=40)
    state = algorithm.init(2)
    for _ in range(2):
        step = algorithm.update(state, cohort(update("own", 3.0, 4.0), peer))
        state = step.state
    # d = 1; round 2: k = 40 // 40 = 1, not 40 // 10 = 4: 1 - 0.01 - 0.02
    assert step.weights["peer"] == pytest.approx(0.97)


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


@pytest.mark.parametrize(("finish", "moved"), [("none", [0.0, 2.0]), ("evidence", [0.0, 0.0])])
def test_a_finish_leaves_the_users_update_out_where_it_has_no_direction(
    finish: str, moved: list[float]
) -> None:
    unseen = {"zero_norm": "erode", "zero_norm_below": 3.0, "finish": finish}
    algorithm = WeightErosion.model_validate(unseen).build(CONTEXT)
    step = algorithm.update(known(), cohort(update("own", 0.0, 2.0), update("peer", 1.0, 0.0)))
    assert step.delta.tolist() == moved


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


# -- Weight Erosion's extensions: sizes, layers, cosine, the cone, and an automatic penalty --------

LAYERS = {"first.weight": slice(0, 2), "first.bias": slice(2, 3), "last.weight": slice(3, 4)}


def built(rounds: int = 10, **parameters: Any) -> Algorithm[WeightErosionState]:
    settings = WeightErosion.model_validate(parameters)
    return settings.build(context(rounds, **{"first.weight": 2, "first.bias": 1, "last.weight": 1}))


# -- beta_i: large hospitals ---------------------------------------------------------------------


def by_size() -> MemoryCohort:
    return cohort(
        update("own", 3.0, 4.0, num_samples=10),
        update("large", 3.0, 5.0, num_samples=40),  # d = 1/5
        update("small", -3.0, 4.0, num_samples=5),  # d = 6/5
    )


def test_large_hospitals_count_by_their_samples() -> None:
    [step] = course(built(weighting="samples", distance_penalty=0.5), by_size())
    # alpha: 1 - .5/5 = .9 and 1 - .5 6/5 = .4; beta 4 and 1/2: factors 3.6 and .2
    assert step.weights == pytest.approx({"own": 1.0, "large": 3.6, "small": 0.2})
    # ((3, 4) + 3.6 (3, 5) + .2 (-3, 4)) / 4.8
    assert step.delta.tolist() == pytest.approx([13.2 / 4.8, 22.8 / 4.8])
    assert step.state.weights == pytest.approx({"large": 0.9, "small": 0.4})  # eq. 5 is as it was


def test_an_absent_large_hospital_keeps_the_weight_that_it_had() -> None:
    algorithm = built(weighting="samples", distance_penalty=0.5)
    full = by_size()
    first, second = course(algorithm, full, MemoryCohort(full.own, {"small": full.others["small"]}))
    assert second.weights["large"] == first.weights["large"] == pytest.approx(3.6)
    assert second.weights["small"] == 0.0


# -- Distances -----------------------------------------------------------------------------------


def four_values() -> MemoryCohort:
    return cohort(update("own", 1.0, 2.0, 0.0, 2.0), update("a", 1.0, 0.0, 3.0, 1.0))


@pytest.mark.parametrize(
    ("layer_weights", "distance"),
    [
        # Squares of the difference by layer: 4, 9, 1; of the user's own: 5, 0, 4
        ({}, sqrt(14 / 9)),
        ({"first": 0.0}, sqrt(1 / 4)),
        ({"first.bias": 0.0}, sqrt(5 / 9)),
        ({"first": 2.0, "last": 0.5}, sqrt(26.5 / 12)),
        ({"first": 2.0, "first.bias": 0.0}, sqrt(9 / 14)),  # the longer name counts
    ],
)
def test_layers_weigh_in_the_euclidean_distance(
    layer_weights: dict[str, float], distance: float
) -> None:
    places = weighted_places(layer_weights, LAYERS)
    measured = measure(four_values(), "euclidean", places)
    assert list(measured.to_own) == pytest.approx([distance])
    algorithm = built(distance_penalty=0.25, layer_weights=layer_weights)
    [step] = course(algorithm, four_values())
    assert step.weights["a"] == pytest.approx(1 - 0.25 * distance)


@pytest.mark.parametrize(
    ("layer_weights", "cosine"),
    [
        # <own, a> by layer: 1, 0, 2; |a|^2: 1, 9, 1; |own|^2: 5, 0, 4
        ({}, 3 / sqrt(9 * 11)),
        ({"first.bias": 0.0}, 3 / sqrt(9 * 2)),
        ({"last": 3.0}, 7 / sqrt(17 * 13)),
    ],
)
def test_layers_weigh_in_the_cosine_distance(
    layer_weights: dict[str, float], cosine: float
) -> None:
    algorithm = built(distance_penalty=0.5, distance="cosine", layer_weights=layer_weights)
    [step] = course(algorithm, four_values())
    assert step.weights["a"] == pytest.approx(1 - 0.5 * (1 - cosine))


def test_cosine_asks_for_the_direction_alone() -> None:
    hospitals = cohort(
        update("own", 1.0, 2.0),
        update("across", -2.0, 1.0),
        update("far", 10.0, 20.0),
        update("opposite", -3.0, -6.0),
        update("still", 0.0, 0.0),
    )
    measured = measure(hospitals, "cosine", [])
    # across 90 degrees, far 0, opposite 180; a zero update has no direction
    assert list(measured.to_own) == pytest.approx([1.0, 0.0, 2.0, 1.0])


def test_the_users_update_may_vanish_in_the_layers_that_count() -> None:
    hospitals = cohort(update("own", 0.0, 0.0, 0.0, 2.0), update("a", 1.0, 0.0, 3.0, 1.0))
    [step] = course(built(layer_weights={"last": 0.0}), hospitals)
    assert step.outcome == "skipped"


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"layer_weights": {"fc": 0.0}}, ("layer_weights", "'fc'", "1.weight, 1.bias")),
        ({"layer_weights": {"1": 0.0}}, ("layer_weights", "all 0")),
        ({"distance_penalty": "fast"}, ("distance_penalty = 'fast'", "'auto'")),
    ],
)
def test_bad_parameters_are_refused_when_the_study_is_read(
    parameters: dict[str, Any], named: tuple[str, ...]
) -> None:
    raw = make_study().model_dump(mode="json") | {"arms": {"weight_erosion": parameters}}
    with refused(StudyError, "arms.weight_erosion", *named):
        validate(Study, raw, "Study", StudyError)


# -- The cone ------------------------------------------------------------------------------------


def angle_of(*vectors: tuple[float, ...]) -> float:
    matrix = torch.tensor(vectors, dtype=torch.float64)
    return half_angle(matrix @ matrix.T)


@pytest.mark.parametrize(
    ("vectors", "degrees_expected"),
    [
        ([(1.0, 2.0)], 0.0),
        ([(1.0, 2.0), (3.0, 6.0)], 0.0),
        ([(1.0, 0.0), (0.0, 5.0)], 45.0),
        ([(1.0, 0.0), (0.0, 5.0), (0.0, 0.0)], 45.0),  # a zero update has no direction
        ([(1.0, 0.0), (0.0, 1.0), (1.0, 1.0)], 45.0),  # one in between needs no wider cone
        ([(1.0, 0.0), (-1.0, sqrt(3.0))], 60.0),  # 120 degrees apart
        ([(1.0, 0.0), (-2.0, 0.0)], 90.0),
        ([(1.0, 0.0), (-1.0, sqrt(3.0)), (-1.0, -sqrt(3.0))], 90.0),  # all around
        ([(1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)], 60.0),  # arccos(1 / 2)
    ],
)
def test_the_narrowest_cone_by_hand(
    vectors: list[tuple[float, ...]], degrees_expected: float
) -> None:
    assert angle_of(*vectors) == pytest.approx(degrees_expected, abs=1e-4)


@given(seed=st.integers(0, 2**32 - 1), num=st.integers(2, 12), dim=st.integers(2, 6))
def test_no_other_axis_has_a_narrower_cone(seed: int, num: int, dim: int) -> None:
    random = np.random.default_rng(seed)
    vectors = random.normal(size=(num, dim)) + random.normal(size=dim) * 2
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    angle = half_angle(torch.from_numpy(vectors @ vectors.T))
    for axis in (*units, units.mean(axis=0), *random.normal(size=(50, dim))):
        widest = degrees(acos(np.clip((units @ axis).min() / np.linalg.norm(axis), -1, 1)))
        assert angle <= widest + 1e-3


def right_angles() -> MemoryCohort:
    return cohort(update("own", 4.0, 0.0), update("a", 0.0, 4.0))


def test_a_run_is_warned_or_stopped_once_the_updates_fit_into_no_cone() -> None:
    narrow, wide = (
        course(built(cone="warn", cone_angle=angle), right_angles())[0] for angle in (44.0, 46.0)
    )
    assert (narrow.outcome, wide.outcome, wide.note) == ("done", "done", "")
    assert re.findall(r"\d+", narrow.note) == ["44", "45"]  # the narrowest around them
    assert torch.equal(narrow.delta, wide.delta)
    algorithm = built(cone="stop", cone_angle=44.0)
    start = algorithm.init(2)
    step = algorithm.update(start, right_angles())
    assert (step.outcome, step.state, step.delta.tolist()) == ("stopped", start, [0.0, 0.0])
    assert step.weights == {"own": 1.0, "a": 1.0}


def test_an_eroded_hospital_need_not_fit_into_the_cone() -> None:
    algorithm = built(cone="stop", cone_angle=44.0, distance_penalty=1.0)  # d = sqrt(2)
    [step] = course(algorithm, right_angles())
    assert (step.outcome, step.weights["a"]) == ("done", 0.0)


# -- distance_penalty = "auto" -------------------------------------------------------------------


def at_distance(*distances: float, num_samples: int = 100) -> MemoryCohort:
    others = (update(f"h{i}", 1.0 + d, num_samples=num_samples) for i, d in enumerate(distances))
    return cohort(update("own", 1.0), *others)


def test_the_median_hospital_loses_its_weight_after_the_share_of_rounds() -> None:
    algorithm = built(rounds=12, distance_penalty="auto", erosion_share=0.5, size_penalty=0.0)
    weights = [step.weights for step in course(algorithm, *[at_distance(0.5, 1.0, 3.0)] * 12)]
    # p_d = 1 / (6 1): h1 at distance 1 goes in six rounds, h0 in twelve, h2 in two.
    assert [w["h1"] for w in weights[:6]] == pytest.approx([5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0])
    assert weights[0]["h2"] == pytest.approx(0.5)
    assert weights[1]["h2"] == pytest.approx(0.0, abs=1e-12)
    assert weights[10]["h0"] == pytest.approx(1 / 12)


def test_the_size_penalty_is_reckoned_with() -> None:
    # k = floor(10 (r - 1) / 20) = 0, 0, 1, 1; path to round 4 with p_s = 1: 1 + 1 + 2 + 2 = 6
    algorithm = built(rounds=8, distance_penalty="auto", erosion_share=0.5, size_penalty=1.0)
    steps = course(algorithm, *[at_distance(2.0, num_samples=20)] * 4)
    # Distance 2, so p_d = 1/12, and a round costs 1/6 or 1/3.
    assert [s.weights["h0"] for s in steps] == pytest.approx([5 / 6, 4 / 6, 2 / 6, 0], abs=1e-12)


def test_the_penalty_is_fixed_after_three_rounds() -> None:
    algorithm = built(rounds=30, distance_penalty="auto", erosion_share=1 / 3, size_penalty=0.0)
    rounds = [at_distance(d) for d in (1.0, 2.0, 6.0, 50.0)]
    steps = course(algorithm, *rounds)
    assert steps[-1].state.paths == pytest.approx((10.0, 20.0, 60.0))
    # p_d = 1/10, 1/15, 1/30, and 1/30 still; weights 1 - .1 - 2/15 - 6/30 - (50/30 -> 0)
    assert [s.weights["h0"] for s in steps] == pytest.approx([0.9, 23 / 30, 17 / 30, 0.0])


# -- Presets of Weight Erosion: what they stand for, and that a good hospital keeps i ------------


def test_the_recommended_preset_is_the_rule_that_was_measured_with_a_longer_share() -> None:
    measured = WeightErosion.model_validate({**EXPLORED[SLOW], "erosion_share": 3.0})
    assert WeightErosion(preset="recommended") == measured


def test_a_key_beside_the_preset_goes_before_it() -> None:
    arm = WeightErosion(preset="recommended", erosion_share=0.5, own_parameters=())
    assert (arm.erosion_share, arm.own_parameters) == (0.5, ())
    assert (arm.distance_penalty, arm.weighting) == ("auto", "samples")


def test_what_travels_are_the_values_and_not_the_preset() -> None:
    study = make_study(arms={"weight_erosion": {"preset": "recommended"}, "local": {}})
    text = study.canonical_json()
    assert "preset" not in text
    received = study_from_json(text)
    assert received == study
    arm = received.arms["weight_erosion"]
    assert isinstance(arm, WeightErosion)
    assert arm.distance_penalty == PRESETS["recommended"]["distance_penalty"]


def test_an_unknown_preset_is_refused_with_those_there_are() -> None:
    with refused(StudyError, "preset = 'fast'", "'paper'", "'recommended'"):
        validate(WeightErosion, {"preset": "fast"}, "The arm", StudyError)
    with refused(StudyError, "preset"):
        validate(WeightErosion, {"preset": ["paper"]}, "The arm", StudyError)


def test_a_candidate_may_be_a_preset() -> None:
    """It takes the place of the arm's own values, which are there although nobody wrote them."""
    study = make_study(
        arms={"weight_erosion": {"preset": "recommended"}, "local": {}},
        selection={"candidates": {"weight_erosion": [{"preset": "paper"}, {}]}},
    )
    choice = SelectedSettings({"preset": "paper"}, 3, 0.1)
    nothing = SelectedSettings({}, 3, 0.1)
    after = chosen(study, {"weight_erosion": choice, "local": nothing})
    assert after.arms["weight_erosion"].model_dump() == WeightErosion().model_dump()
    as_it_is = chosen(study, {"weight_erosion": nothing, "local": nothing})
    assert as_it_is.arms == study.arms
