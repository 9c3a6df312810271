"""The user's metrics and their intervals."""

from math import sqrt
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import brier_score_loss, roc_auc_score

from erosion_client.evaluation.final_figures import measure, measure_with_intervals, told
from erosion_common.protocol.messages import LARGEST_FIGURE, FinalMetrics, Interval
from erosion_common.tasks.metric import of_mean, of_ranking
from experiments.tables import wilson
from tests.support.task_examples import example
from tests.support.tasks import classes_of

MAJORITY = np.array([0])  # a training part whose commonest class is 0
TWO = classes_of(2)


def random_predictions(
    seed: int, num_patients: int, num_classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities with many ties, and labels in which every class occurs."""
    generator = np.random.default_rng(seed)
    raw = generator.integers(1, 6, size=(num_patients, num_classes)).astype(float)
    labels = generator.permutation(np.arange(num_patients) % num_classes)
    return raw / raw.sum(axis=1, keepdims=True), labels


def test_metrics_of_a_case_by_hand() -> None:
    probabilities = np.array([[0.8, 0.2], [0.4, 0.6], [0.3, 0.7], [0.0, 1.0]])
    found = measure(classes_of(2), probabilities, np.array([0, 0, 1, 0]), MAJORITY)
    assert found.num_patients == 4
    assert found["accuracy"] == pytest.approx(2 / 4)
    assert found["majority_accuracy"] == pytest.approx(3 / 4)
    assert found["auroc"] == pytest.approx(2 / 3)  # .7 is above .2 and .6, below 1
    assert found["brier"] == pytest.approx((0.04 + 0.36 + 0.09 + 1) / 4)
    losses = -np.log([0.8, 0.4, 0.7, 0.01])  # the last one is clipped
    assert found["log_loss"] == pytest.approx(losses.mean())


@given(st.integers(0, 1000), st.integers(2, 40))
def test_the_brier_score_of_two_classes_is_that_of_scikit_learn(seed: int, num: int) -> None:
    probabilities, labels = random_predictions(seed, num, 2)
    found = measure(TWO, probabilities, labels, MAJORITY)["brier"]
    assert found == pytest.approx(brier_score_loss(labels, probabilities[:, 1]))


def test_with_more_classes_the_brier_score_is_the_sum_over_them() -> None:
    probabilities = np.array([[0.5, 0.3, 0.2], [0.0, 0.0, 1.0]])
    found = measure(classes_of(3), probabilities, np.array([0, 1]), MAJORITY)["brier"]
    assert found == pytest.approx((0.25 + 0.09 + 0.04 + 2) / 2)


def test_a_certain_hit_costs_as_much_as_099() -> None:
    found = classes_of(2).patient_losses(np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([1, 1]))
    np.testing.assert_allclose(found, -np.log([0.99, 0.01]))


@settings(max_examples=25)
@given(st.integers(0, 1000), st.integers(2, 4), st.integers(8, 40))
def test_auroc_is_that_of_scikit_learn(seed: int, num_classes: int, num_patients: int) -> None:
    probabilities, labels = random_predictions(seed, num_patients, num_classes)
    scores = probabilities[:, 1] if num_classes == 2 else probabilities
    expected = roc_auc_score(labels, scores, multi_class="ovr", average="macro")
    found = measure(classes_of(num_classes), probabilities, labels, MAJORITY)
    assert found["auroc"] == pytest.approx(expected)


def test_auroc_is_the_mean_over_the_classes_that_are_present() -> None:
    probabilities, _ = random_predictions(0, 6, 3)
    labels = np.array([0, 1, 1, 0, 1, 0])
    expected = np.mean([roc_auc_score(labels == c, probabilities[:, c]) for c in (0, 1)])
    assert measure(classes_of(3), probabilities, labels, MAJORITY)["auroc"] == pytest.approx(
        expected
    )


@pytest.mark.parametrize("num_classes", [2, 3])
def test_auroc_is_undefined_where_one_class_is_present(num_classes: int) -> None:
    probabilities, _ = random_predictions(0, 6, num_classes)
    task, labels = classes_of(num_classes), np.ones(6, dtype=np.int64)
    assert measure(task, probabilities, labels, MAJORITY).get("auroc") is None
    final = measure_with_intervals(task, probabilities, labels, MAJORITY, resamples=100, seed=0)
    assert "auroc" not in final.intervals
    assert "log_loss" in final.intervals


def test_intervals_are_percentiles_of_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    probabilities, labels = random_predictions(3, 25, 2)

    def measured() -> FinalMetrics:
        return measure_with_intervals(TWO, probabilities, labels, MAJORITY, resamples=150, seed=5)

    final = measured()
    assert measured() == final
    # The memory used does not change the draws.
    monkeypatch.setattr("erosion_client.evaluation.final_figures.CHUNK", 100)
    assert measured() == final

    generator = np.random.default_rng(5)
    aurocs, losses = [], []
    for drawn in generator.integers(25, size=(150, 25)):
        losses.append(classes_of(2).patient_losses(probabilities[drawn], labels[drawn]).mean())
        if len(set(labels[drawn])) == 2:
            aurocs.append(roc_auc_score(labels[drawn], probabilities[drawn, 1]))
    for name, values in (("auroc", aurocs), ("log_loss", losses)):
        low, high = np.quantile(values, [0.025, 0.975])
        assert final.intervals[name].low == pytest.approx(low)
        assert final.intervals[name].high == pytest.approx(high)


def intervals_of(
    probabilities: np.ndarray, labels: np.ndarray, seed: int = 0
) -> dict[str, Interval]:
    """Of two classes; `probabilities` are those of the second."""
    predictions = np.stack([1 - probabilities, probabilities], axis=1)
    return measure_with_intervals(
        classes_of(2), predictions, labels, MAJORITY, resamples=100, seed=seed
    ).intervals


def test_a_model_without_an_error_is_not_told_to_be_without_one_in_further_patients() -> None:
    labels = np.arange(30) % 2
    certain = np.where(labels == 1, 0.99, 0.01)
    found = intervals_of(certain, labels)
    accuracy, auroc = found["accuracy"], found["auroc"]
    assert (accuracy.low, accuracy.high) == pytest.approx(wilson(1.0, 30))
    assert accuracy.low == pytest.approx(0.8865, abs=1e-4)
    assert 0.8 < auroc.low < 0.9
    assert auroc.high == 1
    # what 11.35 % of patients of the other class would cost
    assert found["log_loss"].low == pytest.approx(-np.log(0.99))
    assert found["log_loss"].high == pytest.approx(-np.log(0.99) + 0.1135 * np.log(99), abs=1e-3)
    assert found["brier"].high == pytest.approx(0.01**2 + 0.1135 * (0.99**2 - 0.01**2), abs=1e-3)


def test_a_prediction_for_everyone_ranks_as_chance_does_whoever_comes() -> None:
    interval = intervals_of(np.full(30, 0.3), np.arange(30) % 2)["auroc"]
    assert (interval.low, interval.high) == (0.5, 0.5)


@pytest.mark.parametrize(("num_patients", "distance"), [(16, 2.9), (60, 2.3)])
def test_intervals_hold_for_good_models(num_patients: int, distance: float) -> None:
    """AUROC 0.95 and 0.98: draws of the patients alone hold it in as few as half of cases."""
    generator = np.random.default_rng(0)
    truth = {
        "accuracy": NormalDist().cdf(distance / 2),
        "auroc": NormalDist().cdf(distance / sqrt(2)),
    }
    held = dict.fromkeys(truth, 0)
    labels = np.arange(num_patients) % 2
    for seed in range(200):
        scores = distance * (generator.normal(size=num_patients) + distance * (labels - 0.5))
        found = intervals_of(1 / (1 + np.exp(-scores)), labels, seed)
        for name, value in truth.items():
            held[name] += found[name].low <= value <= found[name].high
    assert min(held.values()) >= 0.93 * 200, held


@pytest.mark.parametrize(("count", "errors"), [(20, 0), (20, 1), (30, 15), (40, 40)])
def test_the_score_interval_of_a_share_is_wilsons(count: int, errors: int) -> None:
    wrong = (np.arange(count) < errors).astype(float)
    expected = wilson(errors / count, count)
    assert of_mean(wrong, 1 - wrong) == pytest.approx(expected)


@pytest.mark.parametrize(("chance", "group", "others"), [(0.9, 8, 12), (0.6, 3, 50), (0.02, 10, 9)])
def test_the_score_interval_by_its_variance(chance: float, group: int, others: int) -> None:
    ends = of_ranking(chance, group, others)
    assert ends[0] < chance < ends[1]
    for value in ends:  # the mean of Hanley and McNeil's variances with either group as the first
        q1, q2 = value / (2 - value), 2 * value**2 / (1 + value)
        either = [
            value * (1 - value) + (m - 1) * (q1 - value**2) + (n - 1) * (q2 - value**2)
            for m, n in ((group, others), (others, group))
        ]
        variance = sum(either) / 2 / (group * others)
        assert (chance - value) ** 2 == pytest.approx(1.959964**2 * variance, rel=1e-4)
    assert of_ranking(1 - chance, group, others) == pytest.approx((1 - ends[1], 1 - ends[0]))


def test_a_ranking_without_an_error_may_err_in_further_patients() -> None:
    times = np.linspace(1, 25, 30)
    targets = np.stack([times, np.arange(30) % 2], axis=1)
    curves = np.stack([0.6 + times / 70, 0.3 + times / 50, times / 30], axis=1)
    task = example("survival")
    found = measure_with_intervals(task, curves, targets, targets, resamples=100, seed=0)
    for name in ("harrell_c", "uno_c"):
        assert found[name] == found.intervals[name].high == 1
        assert 0.7 < found.intervals[name].low < 0.95


def test_a_diverged_models_figures_are_as_large_as_is_read() -> None:
    assert [told(value) for value in (1e200, -1e200, 0.3)] == [LARGEST_FIGURE, -LARGEST_FIGURE, 0.3]
    assert Interval(low=told(0.1), high=told(1e200)).high == LARGEST_FIGURE
