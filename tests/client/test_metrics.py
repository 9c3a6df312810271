"""The user's metrics and their intervals."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from erosion.client.evaluation.metrics import measure, measure_with_intervals, told
from erosion.common.protocol.messages import LARGEST_FIGURE, Interval
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
    assert found.num_samples == 4
    assert found["accuracy"] == pytest.approx(2 / 4)
    assert found["majority_accuracy"] == pytest.approx(3 / 4)
    assert found["auroc"] == pytest.approx(2 / 3)  # .7 is above .2 and .6, below 1
    assert found["brier"] == pytest.approx((0.08 + 0.72 + 0.18 + 2) / 4)
    losses = -np.log([0.8, 0.4, 0.7, 0.01])  # the last one is clipped
    assert found["log_loss"] == pytest.approx(losses.mean())


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


def test_intervals_are_percentiles_over_resampled_patients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    probabilities, labels = random_predictions(3, 25, 2)
    final = measure_with_intervals(
        classes_of(2), probabilities, labels, MAJORITY, resamples=150, seed=5
    )
    again = measure_with_intervals(
        classes_of(2), probabilities, labels, MAJORITY, resamples=150, seed=5
    )
    assert final == again
    monkeypatch.setattr(
        "erosion.client.evaluation.metrics.CHUNK", 100
    )  # the memory used does not change the draws
    assert (
        measure_with_intervals(
            classes_of(2), probabilities, labels, MAJORITY, resamples=150, seed=5
        )
        == final
    )

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


def test_the_rows_of_one_patient_are_drawn_together() -> None:
    probabilities, labels = random_predictions(3, 25, 2)

    def loss_interval(times: int, patients: np.ndarray | None) -> Interval:
        return measure_with_intervals(
            classes_of(2),
            np.repeat(probabilities, times, axis=0),
            np.repeat(labels, times),
            MAJORITY,
            patients=patients,
            resamples=150,
            seed=5,
        ).intervals["log_loss"]

    once = loss_interval(1, None)
    assert loss_interval(1, np.arange(25) + 3) == once
    together = loss_interval(4, np.repeat(np.arange(25), 4))
    assert (together.low, together.high) == pytest.approx((once.low, once.high))


def test_intervals_hold_the_point_and_narrow_with_patients() -> None:
    widths = []
    for num_patients in (30, 3000):
        probabilities, labels = random_predictions(1, num_patients, 2)
        final = measure_with_intervals(
            classes_of(2), probabilities, labels, MAJORITY, resamples=200, seed=0
        )
        interval = final.intervals["accuracy"]
        assert interval.low <= final["accuracy"] <= interval.high
        widths.append(interval.high - interval.low)
    assert widths[1] < widths[0] / 5


def test_a_diverged_models_figures_are_as_large_as_is_read() -> None:
    """Its squared errors may be beyond; a reply that cannot be read would cost the user its run."""
    assert [told(value) for value in (1e200, -1e200, 0.3)] == [LARGEST_FIGURE, -LARGEST_FIGURE, 0.3]
    assert Interval(low=told(0.1), high=told(1e200)).high == LARGEST_FIGURE
