"""Each task's loss and metrics by hand."""

import warnings
from collections.abc import Callable
from math import log, sqrt

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import mean_poisson_deviance
from sksurv.metrics import concordance_index_censored, concordance_index_ipcw
from sksurv.util import Surv

from erosion_client.evaluation.final_figures import measure
from erosion_common.tasks.features import NumberFeature
from erosion_common.tasks.task import Task
from tests.support.refusals import refused
from tests.support.said import says
from tests.support.small_study import make_study
from tests.support.task_examples import EXAMPLES, example
from tests.support.tasks import classes_of, read_task

LOGITS = torch.tensor([[0.0, 0.0], [0.0, log(3)], [log(3), 0.0]])  # 1/2, 1/4, 1/4 for class 0, 0, 1
CLASSES = torch.tensor([0, 0, 1])


# -- Class weights -----------------------------------------------------------------------------


def test_declared_class_weights_multiply_a_patients_loss() -> None:
    loss = classes_of(2, class_weights=[1.0, 3.0]).training_loss(CLASSES)
    assert float(loss(LOGITS, CLASSES)) == pytest.approx((log(2) + log(4) + 3 * log(4)) / 3)


def test_balanced_weights_let_each_class_count_alike() -> None:
    loss = classes_of(2, class_weights="balanced").training_loss(CLASSES)
    # 3 / (2 * 2) for the two patients of class 0, 3 / (2 * 1) for the other
    expected = (0.75 * log(2) + 0.75 * log(4) + 1.5 * log(4)) / 3
    assert float(loss(LOGITS, CLASSES)) == pytest.approx(expected)
    assert float(loss(LOGITS[:1], CLASSES[:1])) == pytest.approx(0.75 * log(2))  # in any batch


def test_class_weights_must_be_one_for_each_class() -> None:
    with refused(ValueError, "class_weights", 3, 2):
        classes_of(2, class_weights=[1, 2, 3])


# -- Regression --------------------------------------------------------------------------------


def length_of_stay(**keys: object) -> Task:
    raw = {"target": "days", "centre": 10, "spread": 2, "features": ["x"], **keys}
    return read_task({"kind": "tabular", "outcome": "regression", **raw})


def test_the_loss_of_regression_is_that_of_the_standardised_target() -> None:
    targets = torch.tensor([12.0, 4.0])  # 1 and -3 spreads from the centre
    loss = length_of_stay().training_loss(targets)
    assert float(loss(torch.tensor([[0.0], [-1.0]]), targets)) == pytest.approx((1 + 4) / 2)


def test_metrics_of_regression_by_hand() -> None:
    task = length_of_stay()
    predicted, targets = np.array([[1.0], [2.0], [6.0]]), np.array([2.0, 2.0, 20.0])
    found = measure(task, predicted, targets, np.array([4.0, 6.0]))
    assert found["rmse"] == pytest.approx(sqrt((1 + 0 + 196) / 3))
    assert found["mae"] == pytest.approx((1 + 0 + 14) / 3)
    # of the targets: mean 8, squares 36 + 36 + 144
    assert found["r2"] == pytest.approx(1 - 197 / 216)
    # predicted - 3: -2, -1, 3; targets - 8: -6, -6, 12
    assert found["calibration_slope"] == pytest.approx((12 + 6 + 36) / (4 + 1 + 9))
    # half a spread, none, and 7 spreads that count as 4
    assert found["squared_error"] == pytest.approx((0.25 + 0 + 16) / 3)
    assert task.base_rate(np.array([4.0, 6.0])).tolist() == [5.0]
    # One prediction for all has no slope, and a share of the variance all the same.
    flat = measure(task, np.full((3, 1), 7.3), np.array([1.0, 2.0, 9.0]), np.ones(2))
    assert (flat.get("calibration_slope"), flat.get("r2") is None) == (None, False)


def test_regression_is_stratified_about_the_centre() -> None:
    assert length_of_stay().strata(np.array([8.9, 9.1, 10.9, 11.1])).tolist() == [0, 1, 1, 2]


@given(st.floats(-50, 50), st.floats(0.1, 10))
def test_the_unit_of_regression_does_not_matter(shift: float, scale: float) -> None:
    """The same study in another unit has the same loss, outputs and verdict."""
    other = length_of_stay(centre=10 * scale + shift, spread=2 * scale)
    targets = np.array([3.0, 11.0, 12.5])
    outputs = torch.tensor([[-1.0], [0.5], [2.0]], dtype=torch.float64)
    here = length_of_stay().predictions(outputs).numpy()
    there = other.predictions(outputs).numpy()
    np.testing.assert_allclose(there, here * scale + shift, atol=1e-9)
    np.testing.assert_allclose(
        other.patient_losses(there, targets * scale + shift),
        length_of_stay().patient_losses(here, targets),
        atol=1e-9,
    )


# -- Survival ----------------------------------------------------------------------------------


def after_surgery(**keys: object) -> Task:
    raw = {
        "target": {"time": "months", "event": "died"},
        "cut_points": [10, 20],
        "features": ["x"],
        **keys,
    }
    return read_task({"kind": "tabular", "outcome": "survival", **raw})


HAZARDS = torch.tensor([[0.5, 0.25]])
START = -log(1 / (1 - 0.5**0.5) - 1)  # the logit of the hazard 1 - sqrt(1 / 2)
OUTPUTS = torch.log(HAZARDS / (1 - HAZARDS)) - START


@pytest.mark.parametrize(
    ("time", "event", "chance"),
    [
        (0, 1, 0.5),  # in the first interval, which begins at 0
        (10, 1, 0.5),  # an interval's end belongs to it
        (10.5, 1, 0.5 * 0.25),
        (21, 1, 0.5 * 0.75),  # after the horizon: came through both intervals
        (21, 0, 0.5 * 0.75),
        (15, 0, 0.5 * 0.75),  # half of the second interval was seen
        (14.9, 0, 0.5),
        (4.9, 0, 1.0),  # nothing is known
    ],
)
def test_the_likelihood_of_what_was_seen_by_hand(time: float, event: int, chance: float) -> None:
    task = after_surgery()
    targets = torch.tensor([[time, event]], dtype=torch.float32)
    loss = task.training_loss(targets)
    assert float(loss(OUTPUTS, targets)) == pytest.approx(-log(chance), abs=1e-6)
    predicted = task.predictions(OUTPUTS.double())
    assert predicted.tolist()[0] == pytest.approx([0.5, 0.375])
    assert task.held_out_loss(predicted, targets) == pytest.approx(-log(chance), abs=1e-6)
    bounded = task.patient_losses(predicted.numpy(), targets.double().numpy())
    assert bounded.tolist() == pytest.approx([-log(min(chance, 0.99))])


def test_the_base_rate_of_survival_is_kaplan_and_meiers() -> None:
    # At 5 one of four dies, at 12 one of the two who are left.
    patients = np.array([[5.0, 1], [8, 0], [12, 1], [30, 0]])
    assert after_surgery().base_rate(patients).tolist() == pytest.approx([3 / 4, 3 / 4 * 1 / 2])


def test_a_model_of_survival_is_measured_where_two_had_the_event() -> None:
    two = np.array([[5.0, 1], [12, 1], [30, 0]])
    found = [after_surgery().why_unmeasurable(two[rows]) for rows in ([2, 2], [1, 2], [0, 1, 2])]
    assert found == ["nobody had the event", "one patient alone had the event", ""]
    early = after_surgery().why_unmeasurable(two / [10, 1])  # times in another unit
    assert says(early, "followed", "first cut point, 10")


@pytest.mark.parametrize("name", ["regression", "count"])
def test_a_spread_that_is_far_too_small_is_refused(name: str) -> None:
    targets, task = np.arange(9.0), example(name)
    assert task.why_unmeasurable(targets) == ""
    small = task.model_copy(update={"spread": 0.5})  # the median distance from the mean is 2
    assert says(small.why_unmeasurable(targets), "spreads of 0.5")


@pytest.mark.parametrize(
    ("times", "where"),
    [
        ([1, 2, 3, 4, 5, 6, 7, 8, 9, 30], "90% of the values are up to 10"),
        ([150, 300, 450], "100% of the values are above 20"),
        ([1, 2, 3, 12, 15, 30], ""),
    ],
)
def test_times_on_one_side_of_all_cut_points_may_be_of_another_unit(
    times: list[float], where: str
) -> None:
    doubt = after_surgery().doubt_about(np.array([[time, 1] for time in times]))
    assert doubt.startswith(f"column months: {where}" if where else "")
    assert bool(doubt) == bool(where)
    assert not after_surgery().doubt_about(np.empty((0, 2)))


def test_cut_points_that_hardly_differ_have_columns_of_their_own() -> None:
    task = after_surgery(cut_points=[0.5, 730, 730.00001, 1234567])
    names = ["0.5", "730", "730.00001", "1234567"]
    assert task.prediction_columns() == [*(f"event_free_at_{name}" for name in names), "risk"]


@pytest.mark.parametrize("chunk", [None, 40])
def test_both_concordances_of_every_resample_are_those_of_scikit_survival(
    monkeypatch: pytest.MonkeyPatch, chunk: int | None
) -> None:
    if chunk is not None:  # how many pairs are in memory at a time does not matter
        monkeypatch.setattr("erosion_common.tasks.survival.CHUNK", chunk)
    task, generator = after_surgery(), np.random.default_rng(0)

    def patients(shares: list[float]) -> np.ndarray:
        """Tied times, of which some are cut points, and few or many events."""
        times = 2.5 * generator.integers(0, 12, size=generator.integers(1, 25))
        events = generator.random(len(times)) < generator.choice(shares)
        return np.stack([times, events], axis=1).astype(float)

    undefined = dict.fromkeys(("harrell_c", "uno_c"), 0)
    for _ in range(30):
        targets, training = patients([0.1, 0.4, 1.0]), patients([0.0, 0.4, 1.0])
        count = len(targets)
        alive = generator.integers(1, 6, count) / 6 + generator.choice([0, 1e-9, 1e-7], count)
        weights = generator.multinomial(count, np.full(count, 1 / count), size=12).astype(float)
        weights[0] = 1
        figures = task.figures(np.stack([alive, alive], axis=1), targets, weights, training)
        for place, drawn in enumerate(weights.astype(int)):
            rows = np.repeat(np.arange(count), drawn)
            expected = concordances_of_scikit_survival(targets[rows], 1 - alive[rows], training)
            for name, value in expected.items():
                assert figures[name][place] == pytest.approx(value, abs=1e-12, nan_ok=True)
                undefined[name] += np.isnan(value)
    assert all(50 < times < 300 for times in undefined.values()), undefined  # of 360


def concordances_of_scikit_survival(
    targets: np.ndarray, risks: np.ndarray, training: np.ndarray
) -> dict[str, float]:
    """Up to the horizon 20. What it refuses to measure is NaN."""
    events, times = targets[:, 1] > 0, targets[:, 0]
    seen, trained = (Surv.from_arrays(part[:, 1] > 0, part[:, 0]) for part in (targets, training))

    def measured(measure: Callable[[], tuple[float, ...]]) -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            try:
                return measure()[0]
            except ValueError:
                return float("nan")

    return {
        "harrell_c": measured(lambda: concordance_index_censored(events, times, risks)),
        "uno_c": measured(lambda: concordance_index_ipcw(trained, seen, risks, 20)),
    }


def test_the_integrated_brier_score_needs_nobody_beyond_the_training_part() -> None:
    # Cut points 5, 10 and 20; the test's longest follow-up is longer than the training part's, and
    # its shortest begins after the first cut point. Nobody in training is censored: weights are 1.
    task = after_surgery(cut_points=[5, 10, 20])
    training = np.array([[6.0, 1], [12, 1], [25, 1]])
    targets = np.array([[8.0, 1], [30, 0]])
    curves = np.array([[0.8, 0.5, 0.4], [0.9, 0.7, 0.6]])
    # at 5 (0.2^2 + 0.1^2) / 2, at 10 (0.5^2 + 0.3^2) / 2, at 20 (0.4^2 + 0.4^2) / 2
    by_hand = (5 * (0.025 + 0.17) / 2 + 10 * (0.17 + 0.16) / 2) / 15
    assert measure(task, curves, targets, training)["integrated_brier"] == pytest.approx(by_hand)


def test_the_integrated_brier_score_is_there_where_nobody_in_training_had_the_event() -> None:
    # Followed beyond 5: all; beyond 8 and 10: 2 of 3; beyond 20: 1 of 3. Weights are 1, 1.5 and 3.
    task = after_surgery(cut_points=[5, 10, 20])
    training = np.array([[6.0, 0], [12, 0], [25, 0]])
    targets = np.array([[8.0, 1], [30, 0]])
    curves = np.array([[0.8, 0.5, 0.4], [0.9, 0.7, 0.6]])
    at_5 = (0.2**2 + 0.1**2) / 2
    at_10 = 1.5 * (0.5**2 + 0.3**2) / 2
    at_20 = (1.5 * 0.4**2 + 3 * 0.4**2) / 2
    by_hand = (5 * (at_5 + at_10) / 2 + 10 * (at_10 + at_20) / 2) / 15
    assert measure(task, curves, targets, training)["integrated_brier"] == pytest.approx(by_hand)


@pytest.mark.parametrize("points", [[5], [10, 5], [0, 5], [5, 5]])
def test_cut_points_must_ascend_from_above_zero(points: list[float]) -> None:
    with refused(ValueError, "cut_points"):
        after_surgery(cut_points=points)


def test_a_site_without_scikit_survival_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert after_surgery().why_not_here() == ""
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    assert "Run: pip install 'scikit-survival>=" in after_surgery().why_not_here()


def test_the_deviance_of_counts_is_scikit_learns_and_the_loss_is_least_for_the_mean() -> None:
    task = example("count")
    counts, rates = np.array([0.0, 1.0, 4.0, 30.0]), np.array([0.5, 1.0, 6.0, 11.0])
    found = task.figures(rates[:, None], counts, np.ones((1, 4)), counts)
    assert found["deviance"] == pytest.approx(mean_poisson_deviance(counts, rates))
    held_out = task.held_out_loss(torch.from_numpy(rates[:, None]), torch.from_numpy(counts))
    assert held_out == pytest.approx(mean_poisson_deviance(counts, rates))
    targets = torch.from_numpy(counts).float()
    at = task.base_rate_outputs(targets).requires_grad_()
    loss = task.training_loss(targets)(at.expand(4, 1), targets)
    (gradient,) = torch.autograd.grad(loss, at)
    assert float(gradient) == pytest.approx(0.0, abs=1e-6)
    assert float(task.predictions(at.detach()[None])) == pytest.approx(8.75)
    (column,) = task.target_columns
    assert isinstance(column, NumberFeature)
    assert column.range is not None
    assert column.range[0] == 0.0


def test_a_count_takes_no_finish_that_is_fitted_to_numbers() -> None:
    with pytest.raises(ValueError, match="count"):
        make_study(
            task={"kind": "tabular", "outcome": "count", "features": ["x"], **EXAMPLES["count"]},
            arms={"local": {"finish": "evidence"}},
        )
