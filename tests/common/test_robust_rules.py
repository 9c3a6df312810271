"""Byzantine-robust rules: by hand, against Flower's own or numpy, and with too few hospitals."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg, FedMedian, FedTrimmedAvg, Krum, MultiKrum
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from erosion_common.aggregation.cohort import MemoryCohort, Update
from erosion_common.algorithms import REGISTRY
from erosion_common.errors import StudyError
from erosion_common.protocol.flower import identify
from erosion_common.settings.base import validate
from erosion_common.study.study import Study
from tests.support.contexts import CONTEXT
from tests.support.hand_sized import cohort, course, of_values, update
from tests.support.small_study import make_study

RULES = ("krum", "multi_krum", "coordinate_median", "trimmed_mean", "geometric_median")
Vectors = NDArray[np.float32]  # (n, dim), own first


def step_of(name: str, hospitals: MemoryCohort, **parameters: Any) -> Any:
    [step] = course(REGISTRY[name](algorithm=name, **parameters).build(CONTEXT), hospitals)
    return step


def random_vectors(seed: int, num_hospitals: int, dim: int = 7) -> Vectors:
    return np.random.default_rng(seed).normal(1.0, 1.0, (num_hospitals, dim)).astype(np.float32)


def cohort_of(vectors: Vectors) -> MemoryCohort:
    updates = [Update(f"h{i:02}", 1, torch.from_numpy(v), 10, 10) for i, v in enumerate(vectors)]
    return MemoryCohort(updates[0], {u.agent: u for u in updates[1:]})


def of_flower(strategy: FedAvg, vectors: Vectors) -> NDArray[Any]:
    """What a strategy of Flower's makes of the same updates."""
    identify()
    replies = [
        Message(
            RecordDict(
                {
                    "arrays": ArrayRecord({"v": Array(vector)}),
                    "metrics": MetricRecord({"num-examples": 10}),
                }
            ),
            reply_to=Message(RecordDict(), number, "train"),
        )
        for number, vector in enumerate(vectors)
    ]
    arrays, _ = strategy.aggregate_train(1, replies)
    assert arrays is not None
    return arrays["v"].numpy()


# -- Krum and Multi-Krum -------------------------------------------------------------------------


def test_krum_follows_the_hospital_with_the_nearest_neighbours() -> None:
    # n = 5, f = 1: the score is the sum of squares to the 2 nearest.
    # own 0: 1 + 4 = 5; a 1: 1 + 1 = 2; b 2: 1 + 4 = 5; c 9: 49 + 64; d 30: far
    step = step_of("krum", of_values(0.0, 1.0, 2.0, 9.0, 30.0), num_byzantine=1)
    assert step.delta.tolist() == [1.0]
    assert step.weights == {"own": 0.0, "a": 1.0, "b": 0.0, "c": 0.0, "d": 0.0}


@pytest.mark.parametrize("dim", [31, 1001, 5000])
@pytest.mark.parametrize("name", ["krum", "multi_krum"])
def test_rounding_does_not_decide_between_equal_scores(name: str, dim: int) -> None:
    settings = {"num_selected": 1} if name == "multi_krum" else {}
    for seed in range(40):
        own, peer, far = random_vectors(seed, 3, dim)
        peer = own + peer / 10  # each other's nearest: the scores of both are their distance
        step = step_of(name, cohort_of(np.stack([own, peer, far])), **settings)
        assert step.weights == {"h00": 1.0, "h01": 0.0, "h02": 0.0}, seed


def test_multi_krum_averages_the_best() -> None:
    # Scores with n = 5, f = 1: own 5, a 2, b 5, c 113, d 1225
    hospitals = of_values(0.0, 1.0, 2.0, 9.0, 30.0)
    two = step_of("multi_krum", hospitals, num_byzantine=1, num_selected=2)
    assert two.delta.tolist() == [0.5]  # a and, before b with the same score, the user
    auto = step_of("multi_krum", hospitals, num_byzantine=1)  # n - f = 4
    assert auto.delta.tolist() == [3.0]
    assert auto.weights == {"own": 1.0, "a": 1.0, "b": 1.0, "c": 1.0, "d": 0.0}


# -- Coordinate by coordinate --------------------------------------------------------------------


def test_the_median_of_each_coordinate() -> None:
    hospitals = cohort(update("own", 1.0, 9.0), update("a", 2.0, -5.0), update("b", 50.0, 4.0))
    step = step_of("coordinate_median", hospitals)
    assert step.delta.tolist() == [2.0, 4.0]  # a's, b's
    assert step.weights == {"own": 0.0, "a": 1.0, "b": 1.0}  # the user's value was never taken
    between = step_of("coordinate_median", of_values(1.0, 2.0, 4.0, 90.0))
    assert between.delta.tolist() == [3.0]


def test_the_trimmed_mean_drops_both_ends() -> None:
    hospitals = cohort(
        update("own", 1.0, 1.0),
        update("a", 2.0, 7.0),
        update("b", 6.0, -8.0),
        update("c", 70.0, 3.0),
    )
    step = step_of("trimmed_mean", hospitals)
    assert step.delta.tolist() == [4.0, 2.0]  # (2 + 6) / 2, (1 + 3) / 2
    # own was kept in the second coordinate, a in the first, b in the first, c in the second
    assert step.weights == {"own": 1.0, "a": 1.0, "b": 1.0, "c": 1.0}


def test_a_vector_of_many_blocks_is_done_to_its_end() -> None:
    vectors = random_vectors(5, 5, dim=300_001)
    step = step_of("coordinate_median", cohort_of(vectors))
    np.testing.assert_array_equal(step.delta.numpy(), np.median(vectors, axis=0))


# -- Geometric median ----------------------------------------------------------------------------


def rfa(vectors: Vectors, importance: NDArray[np.float64], steps: int, nu: float) -> Any:
    """Pillutla et al., Algorithm 2, with the vectors themselves."""
    wide = vectors.astype(np.float64)
    v = importance @ wide / importance.sum()
    for _ in range(steps):
        beta = importance / np.maximum(nu, np.linalg.norm(wide - v, axis=1))
        v = beta @ wide / beta.sum()
    return v


def clipped(vectors: Vectors) -> Any:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors * np.minimum(1, 2.0 / lengths)).mean(axis=0)


def krum_of_flower(vectors: Vectors) -> Any:
    return of_flower(Krum(num_malicious_nodes=(len(vectors) - 3) // 2), vectors)


DEFINED: dict[str, tuple[dict[str, Any], Callable[[Vectors], Any]]] = {
    "krum": ({}, krum_of_flower),
    "multi_krum": (
        {"num_byzantine": 1},
        lambda vectors: of_flower(
            MultiKrum(num_malicious_nodes=1, num_nodes_to_select=len(vectors) - 1), vectors
        ),
    ),
    "coordinate_median": ({}, lambda vectors: of_flower(FedMedian(), vectors)),
    "trimmed_mean": (
        {"num_byzantine": 2},
        lambda vectors: of_flower(FedTrimmedAvg(beta=2.01 / len(vectors)), vectors),
    ),
    "geometric_median": ({}, lambda vectors: rfa(vectors, np.ones(len(vectors)), 3, 1e-6)),
    "centered_clipping": ({"radius": 2.0}, clipped),
}


@pytest.mark.parametrize("name", DEFINED)
@given(seed=st.integers(0, 2**32 - 1), num_hospitals=st.integers(5, 11))
def test_a_rule_agrees_with_flowers_or_its_definition(
    name: str, seed: int, num_hospitals: int
) -> None:
    vectors = random_vectors(seed, num_hospitals)
    parameters, expected = DEFINED[name]
    found = step_of(name, cohort_of(vectors), **parameters).delta.numpy()
    np.testing.assert_allclose(found, expected(vectors), rtol=1e-5, atol=1e-6)
    if name == "krum":
        np.testing.assert_array_equal(found, expected(vectors))


def test_one_weiszfeld_step_by_hand() -> None:
    # From the mean 4 the distances are 4, 3, 7; weights 1/4, 1/3, 1/7 = 21, 28, 12 of 84.
    step = step_of("geometric_median", of_values(0.0, 1.0, 11.0), steps=1)
    assert step.delta.tolist() == pytest.approx([(28 * 1 + 12 * 11) / 61])
    assert step.weights == pytest.approx({"own": 1.0, "a": 28 / 21, "b": 12 / 21})


# -- Centered clipping ---------------------------------------------------------------------------


def test_centered_clipping_pulls_in_what_is_far_from_the_last_aggregate() -> None:
    algorithm = REGISTRY["centered_clipping"](algorithm="centered_clipping", radius=5.0)  # type: ignore[call-arg]
    hospitals = cohort(update("own", 3.0, 0.0), update("a", 0.0, 4.0), update("b", 6.0, 8.0))
    first, second = course(algorithm.build(CONTEXT), hospitals, hospitals)
    # From v = 0 only b, at distance 10, is halved: ((3, 0) + (0, 4) + (3, 4)) / 3
    assert first.delta.tolist() == pytest.approx([2.0, 8 / 3])
    assert first.weights == pytest.approx({"own": 1.0, "a": 1.0, "b": 0.5})
    # From (2, 8/3): b is at |(4, 16/3)| = 20/3, its factor 3/4; the others' distances are below 5:
    # v + ((1, -8/3) + (-2, 4/3) + .75 (4, 16/3)) / 3 = (2, 8/3) + (2, 8/3) / 3
    assert second.delta.tolist() == pytest.approx([8 / 3, 32 / 9])
    # Two steps in one round end there, too: each starts from the result of the last.
    both = step_of("centered_clipping", hospitals, radius=5.0, steps=2)
    assert both.delta.tolist() == second.delta.tolist()


def test_around_the_users_own_update_nothing_gets_further_than_the_radius() -> None:
    # own + (0 + 1 + (-2) + 2) / 4, each pulled in to 2
    step = step_of("centered_clipping", of_values(5.0, 6.0, -5.0, 105.0), radius=2.0, centre="own")
    assert step.delta.tolist() == pytest.approx([5.25])
    assert step.weights == pytest.approx({"own": 1.0, "a": 1.0, "b": 0.2, "c": 0.02})


def test_an_automatic_radius_is_the_median_distance() -> None:
    # Around the user: 1, 10, 100, so 10: 5 + (0 + 1 - 10 + 10) / 4
    step = step_of("centered_clipping", of_values(5.0, 6.0, -5.0, 105.0), centre="own")
    assert step.delta.tolist() == pytest.approx([5.25])
    # Of an even number it is between the middle two, of 0, 1, 2, 9: (0 + 1 + 1.5 + 1.5) / 4
    even = step_of("centered_clipping", of_values(0.0, 1.0, 2.0, 9.0))
    assert even.delta.tolist() == pytest.approx([1.0])
    # Around 0: 1, 2, 30, so 2: (1 + 2 - 2) / 3
    assert step_of("centered_clipping", of_values(1.0, 2.0, -30.0)).delta.tolist() == pytest.approx(
        [1 / 3]
    )


# -- A harmful hospital, and too few hospitals ---------------------------------------------------


@pytest.mark.parametrize("name", RULES)
def test_with_two_updates_the_round_is_skipped(name: str) -> None:
    step = step_of(name, of_values(1.0, 5.0))
    assert (step.outcome, step.delta.tolist()) == ("skipped", [0.0])
    assert re.findall(r"\d+", step.note) == ["2", "3"]  # so many are here, so many are needed


def test_krum_with_a_given_f_skips_a_round_in_which_too_many_are_away() -> None:
    step = step_of("krum", of_values(1.0, 5.0, 3.0, 4.0), num_byzantine=1)
    assert (step.outcome, re.findall(r"\d+", step.note)) == ("skipped", ["4", "5"])


@pytest.mark.parametrize("name", RULES)
def test_the_user_alone_trains_locally(name: str) -> None:
    step = step_of(name, of_values(7.0))
    assert (step.outcome, step.delta.tolist(), step.weights) == ("done", [7.0], {"own": 1.0})


@pytest.mark.parametrize(
    ("name", "num_hospitals", "parameters", "named"),
    [
        ("krum", 4, {"num_byzantine": 1}, "1 5 4 'trimmed_mean' 1"),
        ("krum", 8, {"num_byzantine": 4}, "4 11 8 2 'trimmed_mean' 3"),
        ("krum", 2, {}, "3 2 'fedavg'"),
        ("multi_krum", 5, {"num_selected": 5}, "5 5 1 4"),
        ("trimmed_mean", 4, {"num_byzantine": 2}, "2 5 4 1"),
        ("coordinate_median", 2, {}, "3 2 'fedavg'"),
        ("geometric_median", 2, {}, "3 2 'fedavg'"),
        ("krum", 5, {"num_byzantine": "many"}, "'many' 'auto'"),
    ],
)
def test_a_study_that_a_rule_does_not_fit_is_refused(
    name: str, num_hospitals: int, parameters: dict[str, Any], named: str
) -> None:
    raw = make_study(hospitals=["a", *(f"h{i}" for i in range(1, num_hospitals))]).model_dump(
        mode="json"
    )
    with pytest.raises(StudyError) as refusal:
        validate(Study, raw | {"arms": {name: parameters}}, "Study", StudyError)
    _, said = str(refusal.value).splitlines()
    assert said.strip().startswith(f"arms.{name}")
    assert re.findall(r"-?\d+|'\w+'", said) == named.split()
