"""The paired sign-flip test and the conclusions from it."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from erosion.simulation.simulator import simulate
from erosion_client.dataset.local_dataset import LocalDataset
from erosion_client.evaluation.final_figures import (
    compare,
    final_figures,
    flips_for,
    sign_flip_p_value,
)
from erosion_client.training.hospital import Hospital
from erosion_common.protocol.messages import (
    CROSS_FITTED_SIGNIFICANCE,
    SIGNIFICANCE,
    Comparison,
    layers_of,
)
from erosion_common.tasks.task import Task
from erosion_server.coordination.run_end import result_of
from erosion_server.run.overview import adjusted_p_values
from erosion_server.run.result import near_the_line, p_of_last_rounds
from tests.support.small_study import TWO_NUMBERS, make_site, make_study, sixty_patients
from tests.support.tasks import classes_of


def test_a_case_by_hand() -> None:
    # Of the 8 sign patterns of 1, 2, 3 only +++ and --- reach a sum of 6.
    assert sign_flip_p_value(np.array([1.0, 2.0, 3.0]), seed=0) == 2 / 8
    # -1 + 2 + 3 = 4 is reached by +++, -++ and their opposites.
    assert sign_flip_p_value(np.array([-1.0, 2.0, 3.0]), seed=0) == 4 / 8


def test_no_differences_at_all_have_a_p_value_of_one() -> None:
    assert sign_flip_p_value(np.zeros(5), seed=0) == 1
    assert sign_flip_p_value(np.zeros(50), seed=0) == 1


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=10))
def test_few_patients_are_tested_exactly(drawn: list[float]) -> None:
    differences = np.array(drawn)
    # The tolerance of the test itself, so that rounding does not decide between the two.
    observed = abs(sum(drawn)) - 1e-12 * sum(map(abs, drawn))
    sums = [abs(sum(map(float.__mul__, s, drawn))) for s in product([1.0, -1.0], repeat=len(drawn))]
    expected = np.mean([s >= observed for s in sums])
    assert sign_flip_p_value(differences, seed=0) == pytest.approx(expected, abs=2 / len(sums))
    assert sign_flip_p_value(-differences, seed=0) == sign_flip_p_value(differences, seed=0)


def test_many_patients_are_tested_by_random_flips() -> None:
    generator = np.random.default_rng(0)
    sixteen = generator.normal(0.4, 1, size=16)
    exact = sign_flip_p_value(sixteen, seed=0)
    # A seventeenth patient without a difference changes nothing but the way of counting.
    sampled = sign_flip_p_value(np.append(sixteen, 0.0), seed=0)
    assert sampled == pytest.approx(exact, abs=0.01)
    assert sampled != exact
    assert sign_flip_p_value(np.append(sixteen, 0.0), seed=0) == sampled


ONES = np.ones(40)  # as patterns go, only two of 2 ** 40 are as far out


def test_a_large_difference_cannot_have_a_p_value_of_zero() -> None:
    assert sign_flip_p_value(ONES, seed=0) == 1 / 20_001


@pytest.mark.parametrize("level", [SIGNIFICANCE, CROSS_FITTED_SIGNIFICANCE])
@pytest.mark.parametrize("hospitals", [1, 100, 101, 401, 1000])
def test_a_clear_difference_among_many(hospitals: int, level: float) -> None:
    flips = flips_for(hospitals, level)
    alike = dict.fromkeys(map(str, range(hospitals)), sign_flip_p_value(ONES, seed=0, flips=flips))
    assert max(adjusted_p_values(alike).values()) <= level


def test_few_hospitals_have_as_many_random_flips_as_one_and_many_have_no_end() -> None:
    found = [flips_for(n, CROSS_FITTED_SIGNIFICANCE) for n in (1, 100, 101, 10**9)]
    assert found == [20_000, 20_000, 20_200, 1_000_000]
    assert [flips_for(n, SIGNIFICANCE) for n in (400, 401)] == [20_000, 20_050]


@pytest.mark.parametrize(("hospitals", "flips"), [(400, 20_000), (800, 40_000)])
def test_comparisons_are_counted_by_hospitals(tmp_path: Path, hospitals: int, flips: int) -> None:
    study = make_study(
        hospitals=["a", *(f"h{number}" for number in range(1, hospitals))],
        task=TWO_NUMBERS,
        evaluation={"test_share": 0.5, "strict": True},
    )
    dataset = LocalDataset(make_site(tmp_path, sixty_patients("a")), study)
    right, wrong = (predictions(chance, dataset.tested_outcomes) for chance in (0.99, 0.01))
    found = final_figures(dataset, {"fedavg": right, "local": wrong}, None).comparison
    assert found is not None
    assert (found.p_value, found.conclusion) == (1 / (1 + flips), "better")


def test_the_reference_of_the_verdict_is_the_second_model_of_the_curves(tmp_path: Path) -> None:
    study = make_study(
        task=TWO_NUMBERS, evaluation={"test_share": 0.5, "references": ["ridge", "boosted_trees"]}
    )
    dataset = LocalDataset(make_site(tmp_path, sixty_patients("a")), study)
    chances = dict(
        zip(("fedavg", "local", "ridge", "boosted_trees"), (0.9, 0.6, 0.7, 0.8), strict=True)
    )
    arms = {name: predictions(each, dataset.tested_outcomes) for name, each in chances.items()}
    found = final_figures(dataset, arms, None, ["boosted_trees"])
    assert found.comparison is not None
    assert found.comparison.reference == "boosted_trees"
    assert [each.model for each in found.performance.models[:2]] == ["fedavg", "boosted_trees"]


def predictions(of_truth: float, labels: np.ndarray) -> np.ndarray:
    probabilities = np.full((len(labels), 2), 1 - of_truth)
    probabilities[np.arange(len(labels)), labels] = of_truth
    return probabilities


@pytest.mark.parametrize(
    ("arm", "reference", "labels", "conclusion"),
    [
        (0.9, 0.6, np.arange(20) % 2, "better"),
        (0.6, 0.9, np.arange(20) % 2, "worse"),
        (0.7, 0.7, np.arange(20) % 2, "no clear difference"),
        (0.9, 0.6, (np.arange(20) < 4).astype(int), "too few patients"),
        (0.9, 0.6, np.zeros(20, dtype=int), "too few patients"),
    ],
)
def test_conclusions(arm: float, reference: float, labels: np.ndarray, conclusion: str) -> None:
    found = compare(
        classes_of(2),
        ("new", "old"),
        (predictions(arm, labels), predictions(reference, labels)),
        labels,
        seed=0,
    )
    assert found.conclusion == conclusion
    assert (found.arm, found.reference, found.num_patients) == ("new", "old", 20)
    assert found.smallest_class == min((labels == 0).sum(), (labels == 1).sum())
    assert found.mean_difference == pytest.approx(np.log(reference / arm))


def test_a_few_patients_of_a_rare_class_do_not_undo_what_hundreds_show() -> None:
    labels = np.repeat([0, 1, 2], [60, 39, 1])
    right = np.full((100, 3), 0.05)
    right[np.arange(100), labels] = 0.9
    unsure = np.full((100, 3), 1 / 3)
    found = compare(classes_of(3), ("new", "old"), (right, unsure), labels, seed=0)
    assert (found.conclusion, found.smallest_class) == ("better", 40)


@pytest.mark.parametrize(
    ("num_patients", "ordinary", "strict"),
    [(30, "better", "no clear difference"), (300, "better", "better")],
)
def test_strict_claims_outlast_a_patient(num_patients: int, ordinary: str, strict: str) -> None:
    labels = np.arange(num_patients) % 2
    both = predictions(0.9, labels), predictions(0.8, labels)
    arms = ("new", "old")
    found = compare(classes_of(2), arms, both, labels, seed=0)
    assert (found.conclusion, found.strict) == (ordinary, False)
    found = compare(classes_of(2), arms, both, labels, seed=0, strict=True)
    assert (found.conclusion, found.strict) == (strict, True)
    assert (found.p_value <= found.level) is (strict == "better")  # so that Holm's method has it
    swapped = compare(classes_of(2), arms, both[::-1], labels, seed=0, strict=True)
    assert swapped.conclusion == strict.replace("better", "worse")


def test_no_strict_claims_without_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.arange(300) % 2
    both = predictions(0.9, labels), predictions(0.8, labels)
    task = classes_of(2)
    monkeypatch.setattr(type(task), "largest_difference", Task.largest_difference)
    found = compare(task, ("new", "old"), both, labels, seed=0, strict=True)
    assert found.conclusion == "no clear difference"


def test_the_last_rounds_say_how_far_a_p_value_moves(tmp_path: Path) -> None:
    study = make_study(task=TWO_NUMBERS, arms={"fedavg": {}, "local": {}}, rounds=8)
    hospitals = {
        name: Hospital(make_site(tmp_path, sixty_patients(name), name=name, file=f"{name}.csv"))
        for name in study.hospitals
    }
    outcome = simulate(study, hospitals)
    told, task = outcome.evaluation.comparison, type(study.task)
    assert told is not None
    loss = task.verdict_metric
    of_arm, of_other = (
        [r.user_metrics.get(loss) or 0 for r in outcome.records[a] if r.user_metrics][-5:]
        for a in ("fedavg", "local")
    )
    # As many standard errors as the rounds' difference has, if the final one has those of p.
    errors = norm.isf(told.p_value / 2) / abs(told.mean_difference)
    each = [2 * norm.sf(errors * abs(a - b)) for a, b in zip(of_arm, of_other, strict=True)]
    found = p_of_last_rounds(task, outcome.evaluated, outcome.records)
    assert found == pytest.approx((min(told.p_value, *each), max(told.p_value, *each)))
    assert result_of(outcome, "2026-01-02T03:04:05+00:00", 1.0).p_by_round == found
    sure = told.model_copy(update={"p_value": 1e-4, "smallest_class": 30, "level": 0.02})
    assert not near_the_line(sure, (1e-4, 1e-3))
    assert near_the_line(sure, (1e-4, 0.03))
    personal = replace(outcome.evaluated, personal={"fedavg": torch.zeros(1)})
    assert p_of_last_rounds(task, personal, outcome.records) is None
    finished = replace(outcome.evaluated, personal={layers_of("fedavg"): torch.zeros(1)})
    assert p_of_last_rounds(task, finished, outcome.records) is None
    # What was undone is not among the last models.
    *before, last = outcome.records["fedavg"]
    undone = {**outcome.records, "fedavg": [*before, replace(last, undoes=6)]}
    without = {**outcome.records, "fedavg": before[:6]}
    expected = p_of_last_rounds(task, outcome.evaluated, without)
    assert expected != found
    assert p_of_last_rounds(task, outcome.evaluated, undone) == expected


def test_a_finding_near_the_line_says_so() -> None:
    def found(p_value: float, *cuts: float, fewest: int = 30) -> Comparison:
        return Comparison(
            arm="fedavg",
            reference="ridge",
            num_patients=100,
            smallest_class=fewest,
            mean_difference=-0.1,
            p_value=p_value,
            conclusion="better" if p_value <= 0.02 else "no clear difference",
            level=0.02,
            p_by_cut=cuts,
            flips=20_000,
        )

    assert not found(0.001).is_near
    assert found(0.01).is_near
    assert found(0.05).is_near
    assert not found(0.2).is_near
    assert not found(0.05, fewest=4).is_near
    assert found(0.001, 0.0005, 0.03).is_near  # by one cut alone nothing would be claimed
    assert not found(0.05, 0.04, 0.09).is_near
    low, high = found(0.02).p_band
    assert 0.017 < low < 0.02 < high < 0.023
