"""Curves, calibration, thresholds and groups, held against the libraries that everybody knows."""

from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.calibration import calibration_curve
from sklearn.inspection import partial_dependence, permutation_importance
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import (
    average_precision_score,
    confusion_matrix,
    precision_recall_curve,
    r2_score,
    roc_auc_score,
    roc_curve,
)

from erosion_client.dataset.local_dataset import LocalDataset
from erosion_client.disclosure.control import DisclosureControl
from erosion_client.evaluation import explanation
from erosion_client.evaluation.explanation import (
    RIDGE,
    coefficients,
    dependence,
    half_width,
    importance,
    linear_effects,
    permuted_losses,
)
from erosion_client.evaluation.final_figures import measure, measure_with_intervals, told
from erosion_client.evaluation.performance import (
    _share,
    average_precision,
    event_of,
    followed_weights,
    kaplan_meier,
    model_figures,
    spline,
    subgroups,
)
from erosion_common.protocol.messages import LARGEST_FIGURE, FinalMetrics, Interval
from erosion_common.protocol.performance import Curve, ModelFigures, Subgroup
from erosion_common.study.study import Study
from erosion_common.tasks.features import Feature
from erosion_common.tasks.metric import of_mean, of_ranking
from experiments.tables import wilson
from tests.support.small_study import TWO_NUMBERS, make_site, make_study
from tests.support.task_examples import example
from tests.support.tasks import classes_of

Floats = NDArray[np.float64]
N = 600
CLASSES = {
    "kind": "tabular",
    "target": "ill",
    "classes": ["no", "yes"],
    "features": ["age", {"name": "sex", "categories": ["f", "m"]}],
}
NUMBER = {
    "kind": "tabular",
    "outcome": "regression",
    "target": "days",
    "centre": 10.0,
    "spread": 4.0,
    "features": ["age"],
}
TIMES = {
    "kind": "tabular",
    "outcome": "survival",
    "target": {"time": "time", "event": "event"},
    "cut_points": [1.0, 2.0, 3.0, 4.0],
    "features": ["age"],
}


@dataclass
class Patients:
    """What the figures need of a data set."""

    study: Study
    cells: DisclosureControl
    outcomes: Any
    trained_outcomes: Any
    values: dict[str, Floats]

    @property
    def measured_patients(self) -> "Patients":
        return self

    def seed(self, purpose: str) -> int:
        return len(purpose)

    def columns(self, *, every: bool) -> list[tuple[Feature, Floats]]:
        del every
        features = getattr(self.study.task, "features", ())
        return [(each, self.values[each.name]) for each in features if each.name in self.values]


@pytest.fixture
def cells(tmp_path: Path) -> DisclosureControl:
    return DisclosureControl(make_site(tmp_path, "", limits={"min_cell": 10}))


def patients(
    task: dict[str, Any], outcomes: Any, cells: DisclosureControl, **more: Any
) -> tuple[Any, Study]:
    study = make_study(task=task, arms={"fedavg": {}, "local": {}}, **more)
    return Patients(study, cells, outcomes, outcomes, {}), study


def chances(seed: int = 0, num: int = N, *, too_extreme: float = 1.0) -> tuple[Floats, Any]:
    generator = np.random.default_rng(seed)
    logits = generator.normal(-0.8, 1.2, num)
    truth = (generator.random(num) < 1 / (1 + np.exp(-logits))).astype(np.int64)
    predicted = 1 / (1 + np.exp(-too_extreme * logits))
    return np.column_stack([1 - predicted, predicted]), truth


def of_classes(cells: DisclosureControl, **more: Any) -> tuple[ModelFigures, Floats, Any]:
    predicted, truth = chances(too_extreme=1.6)
    data, _ = patients(CLASSES, truth, cells, **more)
    found, *_ = model_figures(data, {"fedavg": predicted}, ["fedavg"])
    return found, predicted[:, 1], truth


def lie_on(curve: Curve, x: Floats, y: Floats) -> bool:
    """Whether each point of a curve is one of these; figures have six digits."""
    apart = np.hypot(np.subtract.outer(curve.x, x), np.subtract.outer(curve.y, y))
    return bool((apart.min(axis=1) < 1e-5).all())


def test_roc_and_precision_recall_lie_on_those_of_scikit_learn(cells: DisclosureControl) -> None:
    found, scores, truth = of_classes(cells)
    false, sensitivity, _ = roc_curve(truth, scores, drop_intermediate=False)
    curve = found.curves["roc"]
    assert (curve.x[0], curve.y[0], curve.x[-1], curve.y[-1]) == (0, 0, 1, 1)
    assert lie_on(curve, false, sensitivity)
    precision, recall, _ = precision_recall_curve(truth, scores)
    curve = found.curves["precision_recall"]
    assert lie_on(curve, recall, precision)
    assert len(curve.x) > 20
    area = found.estimates["auroc"]
    assert area.value == pytest.approx(roc_auc_score(truth, scores), abs=1e-6)
    assert area.low < area.value < area.high
    known = average_precision_score(truth, scores)
    assert found.estimates["average_precision"].value == pytest.approx(known, abs=1e-6)


def test_the_average_precision_of_ties_and_weights_is_scikit_learns() -> None:
    generator = np.random.default_rng(3)
    scores, event = np.round(generator.random(80), 1), generator.random(80) < 0.3
    weights = generator.integers(0, 4, (5, 80)).astype(np.float64)
    for weight, value in zip(weights, average_precision(scores, event, weights), strict=True):
        assert value == pytest.approx(average_precision_score(event, scores, sample_weight=weight))


def test_calibration_is_that_of_an_unpenalised_regression(cells: DisclosureControl) -> None:
    found, scores, truth = of_classes(cells)
    logits = np.log(scores / (1 - scores))
    fit = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(logits[:, None], truth)
    slope = found.estimates["calibration_slope"]
    assert slope.value == pytest.approx(fit.coef_[0, 0], abs=1e-4)
    assert slope.high < 1  # the risks are too extreme
    assert found.estimates["expected_over_observed"].value == pytest.approx(
        scores.sum() / truth.sum(), rel=1e-5
    )
    large = found.estimates["calibration_in_the_large"].value
    shifted = 1 / (1 + np.exp(-logits - large))
    assert shifted.sum() == pytest.approx(truth.sum(), rel=1e-4)  # what defines it
    knots = np.quantile(logits, [0.1, 0.5, 0.9]).tolist()
    smooth = LogisticRegression(C=np.inf, tol=1e-10, max_iter=5000, fit_intercept=False)
    smooth.fit(spline(logits, knots), truth)
    curve = found.curves["calibration"]
    x = np.array(curve.x)
    known = smooth.predict_proba(spline(np.log(x / (1 - x)), knots))[:, 1]
    assert np.allclose(curve.y, known, atol=2e-3)
    assert all(
        low <= y <= high for low, y, high in zip(curve.low, curve.y, curve.high, strict=True)
    )
    observed, predicted = calibration_curve(truth, scores, n_bins=5, strategy="quantile")
    assert np.allclose([group.observed.value for group in found.groups], observed, atol=1e-5)
    assert np.allclose([group.predicted for group in found.groups], predicted, atol=1e-5)


def test_thresholds_and_net_benefit_are_those_of_the_confusion_matrix(
    cells: DisclosureControl,
) -> None:
    found, scores, truth = of_classes(cells, evaluation={"thresholds": [0.2, 0.35]})
    assert [row.threshold for row in found.thresholds] == [0.2, 0.35]
    for row in found.thresholds:
        tn, fp, fn, tp = confusion_matrix(truth, scores >= row.threshold).ravel()
        assert row.alerts == pytest.approx((tp + fp) / N, abs=1e-6)
        for figure, value in (
            (row.sensitivity, tp / (tp + fn)),
            (row.specificity, tn / (tn + fp)),
            (row.positive_predictive_value, tp / (tp + fp)),
            (row.negative_predictive_value, tn / (tn + fn)),
            (row.net_benefit, tp / N - fp / N * row.threshold / (1 - row.threshold)),
        ):
            assert figure is not None
            assert figure.value == pytest.approx(value, abs=1e-5)
            assert figure.low <= figure.value <= figure.high
    curve = found.curves["net_benefit"]
    for threshold, benefit in zip(curve.x, curve.y, strict=True):  # as dcurves computes it
        _, fp, _, tp = confusion_matrix(truth, scores >= threshold).ravel()
        assert benefit == pytest.approx(tp / N - fp / N * threshold / (1 - threshold), abs=1e-5)


def test_no_two_points_of_a_curve_show_fewer_than_a_cell_of_patients(
    cells: DisclosureControl,
) -> None:
    predicted, truth = chances(num=90)
    data, _ = patients(CLASSES, truth, cells)
    found, *_ = model_figures(data, {"fedavg": predicted}, ["fedavg"])
    curve = found.curves["roc"]
    happened = truth.sum()
    above = np.array(curve.x) * (90 - happened) + np.array(curve.y) * happened
    steps = np.diff(above)
    assert ((np.abs(steps) < 1e-2) | (steps > cells.cell - 1e-2)).all()
    assert all(row.alerts is None or 10 <= round(90 * row.alerts) <= 80 for row in found.thresholds)


def test_a_share_of_weights_is_no_share_below_none_or_above_all() -> None:
    of = np.array([0.3, 0.3, 0.3])
    none, every = (_share(part, of) for part in (np.array([-5e-17, 0.0, 0.0]), of + 5e-16))
    assert none is not None
    assert every is not None
    assert (none.value, every.value, every.high) == (0.0, 1.0, 1.0)
    assert str(none.low) == "0.0"


def test_repeated_cuts_count_a_patient_once(cells: DisclosureControl) -> None:
    predicted, truth = chances()
    data, _ = patients(CLASSES, truth, cells)
    (once,) = model_figures(data, {"fedavg": predicted}, ["fedavg"])
    (three,) = model_figures(data, {"fedavg": np.stack([predicted] * 3)}, ["fedavg"])
    assert np.allclose(three.curves["roc"].low, once.curves["roc"].low)
    slopes = [each.estimates["calibration_slope"] for each in (once, three)]
    assert slopes[0].low == pytest.approx(slopes[1].low, rel=1e-3)


@pytest.mark.parametrize("happened", [0, 4, 90])
def test_too_few_with_the_event_have_no_curves(cells: DisclosureControl, happened: int) -> None:
    predicted, _ = chances(num=90)
    truth = (np.arange(90) < happened).astype(np.int64)
    data, _ = patients(CLASSES, truth, cells)
    assert model_figures(data, {"fedavg": predicted}, ["fedavg"]) == []


def test_one_prediction_for_everyone_and_certain_ones_have_figures(
    cells: DisclosureControl,
) -> None:
    _, truth = chances()
    data, _ = patients(CLASSES, truth, cells)
    same = np.tile([0.7, 0.3], (N, 1))
    sure = np.eye(2)[truth]
    few, few_truth = np.eye(2)[truth[:60]], truth[:60]
    found = model_figures(data, {"fedavg": same, "local": sure}, ["fedavg"])
    assert [each.model for each in found] == ["fedavg", "local"]
    assert found[0].estimates["auroc"].value == 0.5
    found += model_figures(patients(CLASSES, few_truth, cells)[0], {"a": few, "b": 1 - few}, ["a"])
    assert [each.estimates["auroc"].value for each in found] == [0.5, 1, 1, 0]
    assert not any("calibration_slope" in each.estimates for each in found)
    alike = np.full((N, 1), 5.0)
    (number,) = model_figures(
        patients(NUMBER, truth + 0.0, cells)[0], {"fedavg": alike}, ["fedavg"]
    )
    assert number.estimates.keys() == {"calibration_in_the_large"}


def test_several_classes_have_one_model_and_a_curve_each(cells: DisclosureControl) -> None:
    generator = np.random.default_rng(0)
    truth = generator.integers(0, 3, N)
    predicted = generator.dirichlet([1, 1, 1], N)
    data, _ = patients({**CLASSES, "classes": ["a", "b", "c"]}, truth, cells)
    found = model_figures(data, {"local": predicted, "fedavg": predicted}, ["fedavg"])
    assert [(each.model, each.event) for each in found] == [("fedavg", name) for name in "abc"]


def test_a_number_is_held_against_least_squares(cells: DisclosureControl) -> None:
    generator = np.random.default_rng(0)
    predicted = generator.normal(10, 3, N)
    truth = 2 + 0.8 * predicted + generator.normal(0, 2, N)
    data, _ = patients(NUMBER, truth, cells)
    (found,) = model_figures(data, {"fedavg": predicted[:, None]}, ["fedavg"])
    fit = LinearRegression().fit(predicted[:, None], truth)
    slope = found.estimates["calibration_slope"]
    assert slope.value == pytest.approx(fit.coef_[0], abs=1e-5)
    assert slope.low < 0.8 < slope.high
    large = found.estimates["calibration_in_the_large"].value
    assert large == pytest.approx((truth - predicted).mean(), abs=1e-4)
    assert [group.num_patients for group in found.groups] == [120] * 5
    spreads = [group.errors for group in found.groups]
    assert all(each == tuple(sorted(each)) for each in spreads)  # type: ignore[type-var]
    curve = found.curves["calibration"]
    assert np.allclose(curve.y, 2 + 0.8 * np.array(curve.x), atol=0.8)


def survival(num: int = 500) -> tuple[Floats, Floats]:
    generator = np.random.default_rng(1)
    rate = np.exp(generator.normal(-1.2, 0.8, num))
    times, followed = generator.exponential(1 / rate), generator.uniform(0.5, 6, num)
    targets = np.column_stack([np.minimum(times, followed), times <= followed]).astype(np.float64)
    return np.exp(-rate[:, None] * np.array([1.0, 2.0, 3.0, 4.0])), targets


def test_survival_is_held_against_scikit_survival(cells: DisclosureControl) -> None:
    from sksurv.metrics import cumulative_dynamic_auc
    from sksurv.nonparametric import kaplan_meier_estimator
    from sksurv.util import Surv

    predicted, targets = survival()
    data, _ = patients(TIMES, targets, cells)
    (found,) = model_figures(data, {"fedavg": predicted}, ["fedavg"])
    assert found.horizon == 4.0
    known = Surv.from_arrays(targets[:, 1] > 0, targets[:, 0])
    curve = found.curves["auroc_by_time"]
    areas, _ = cumulative_dynamic_auc(known, known, 1 - predicted, np.array(curve.x))
    assert np.allclose(curve.y, areas, atol=1e-5)
    times, free = kaplan_meier_estimator(known["event"], known["time"])
    steps = np.concatenate([[1.0], free])
    points = [0.5, 1.0, 2.5, 4.0]
    ours = kaplan_meier(targets, np.ones((1, len(targets))), points)[0]
    assert np.allclose(ours, steps[np.searchsorted(times, points, side="right")])
    # The weighted share with the event by the horizon is Kaplan and Meier's.
    at_horizon = 1 - kaplan_meier(targets, np.ones((1, len(targets))), [4.0])[0, 0]
    assert found.prevalence == pytest.approx(at_horizon, abs=0.01)
    assert found.estimates["expected_over_observed"].low < 1
    assert found.estimates["expected_over_observed"].high > 1
    low, high = (found.curves[name].y for name in ("free_of_event_low", "free_of_event_high"))  # type: ignore[index]
    assert low[-1] > high[-1]
    weights = followed_weights(targets, 4.0)
    assert (weights[(targets[:, 0] < 4) & (targets[:, 1] == 0)] == 0).all()


def test_curves_over_time_show_the_end_of_no_few_patients(cells: DisclosureControl) -> None:
    predicted, targets = survival(120)
    finer = {**TIMES, "cut_points": [n / 20 for n in range(1, 101)]}
    chances = predicted[:, :1] ** (np.arange(1, 101) / 20)
    data, _ = patients(finer, targets, cells)
    (found,) = model_figures(data, {"fedavg": chances}, ["fedavg"])
    low = np.argsort(-chances[:, 0], kind="stable")[:40]
    for name, times in (
        ("auroc_by_time", targets[:, 0]),
        ("free_of_event_low", targets[low, 0]),
    ):
        x = found.curves[name].x  # type: ignore[index]
        assert len(x) > 2
        ended = [(times <= point).sum() for point in x]
        assert min(np.diff(ended)) >= 10


def test_the_share_with_the_event_is_kaplan_and_meiers_whoever_was_trained_on(
    cells: DisclosureControl,
) -> None:
    predicted, targets = survival()
    data, _ = patients(TIMES, targets, cells)
    free = kaplan_meier(targets, np.ones((1, len(targets))), [4.0])[0, 0]
    for training in (np.minimum(targets, [3.5, 1.0]), targets[:30] * [1.0, 0.0]):
        data.trained_outcomes = training
        (found,) = model_figures(data, {"fedavg": predicted}, ["fedavg"])
        assert found.horizon == 4.0
        assert found.prevalence == pytest.approx(1 - free, abs=1e-5)


def test_no_choice_of_cut_points_tells_the_follow_up_of_one_patient() -> None:
    targets = np.column_stack([np.arange(1.0, 41), np.ones(40)])
    chosen = []
    for cut_points in ((10, 25, 26), (25.4, 25.6), (24, 30, 31)):  # 10 patients are beyond 30
        task = make_study(task={**TIMES, "cut_points": cut_points}).task
        found = event_of(task, targets, -1, 10)
        assert found is not None
        chosen.append(found[2])
    assert chosen == [25, 25.4, 24]  # of 21 to 30 the mean is 25.5


def of_groups(
    cells: DisclosureControl,
    values: dict[str, Floats],
    declared: dict[str, list[float]],
) -> tuple[list[Subgroup], Floats, Any]:
    predicted, truth = chances(0)
    data, _ = patients(CLASSES, truth, cells, evaluation={"subgroups": declared})
    data.values = values
    return [*subgroups(data, predicted)], predicted[:, 1], truth


def test_subgroups_are_measured_on_their_own_patients(cells: DisclosureControl) -> None:
    sex = (np.arange(N) % 3 == 0).astype(np.float64)
    age = np.linspace(20, 90, N)
    found, scores, truth = of_groups(cells, {"sex": sex, "age": age}, {"sex": [], "age": [40, 60]})
    assert [(each.column, each.group) for each in found] == [
        ("age", "below 40"),
        ("age", "40 to below 60"),
        ("age", "60 and above"),
        ("sex", "f"),
        ("sex", "m"),
    ]
    men = sex == 1
    of_men = found[-1]
    assert of_men.num_patients == men.sum()
    assert of_men.discrimination is not None
    assert of_men.calibration is not None
    assert of_men.gap is not None
    area = roc_auc_score(truth[men], scores[men])
    assert of_men.discrimination.value == pytest.approx(area, abs=1e-6)
    others = roc_auc_score(truth[~men], scores[~men])
    assert of_men.gap.value == pytest.approx(area - others, abs=1e-6)
    expected = scores[men].sum() / truth[men].sum()
    assert of_men.calibration.value == pytest.approx(expected, rel=1e-5)


def test_a_small_subgroup_is_hidden_and_what_would_give_it_away(cells: DisclosureControl) -> None:
    sex = (np.arange(N) < 12).astype(np.float64)  # 12 men, not all of them ill
    found, *_ = of_groups(cells, {"sex": sex}, {"sex": []})
    assert [(each.num_patients, each.discrimination) for each in found] == [(None, None)] * 2
    three = np.where(np.arange(N) < 12, 30.0, np.where(np.arange(N) < 200, 50.0, 70.0))
    found, *_ = of_groups(cells, {"age": three}, {"age": [40, 60]})
    assert [each.num_patients is None for each in found] == [True, True, False]


def test_thresholds_and_fifths_of_survival_count_those_followed(cells: DisclosureControl) -> None:
    predicted, targets = survival(120)
    targets[::3] = [0.5, 0.0]  # nobody knows what became of them
    data, _ = patients(TIMES, targets, cells, evaluation={"thresholds": [0.2, 0.5]})
    (found,) = model_figures(data, {"fedavg": predicted}, ["fedavg"])
    assert found.horizon is not None
    risks = 1 - predicted[:, int(found.horizon) - 1]
    known = followed_weights(targets, found.horizon) > 0
    fifths = np.array_split(np.argsort(risks, kind="stable"), 5)
    assert len(found.groups) == sum(known[some].sum() >= 10 for some in fifths) < 5
    above = [(known & (risks >= x)).sum() for x in found.curves["net_benefit"].x]
    assert not {*range(1, 10)} & {*np.abs(np.diff(above)).tolist()}


def test_a_subgroup_of_survival_needs_a_cell_who_were_followed_beyond(
    cells: DisclosureControl,
) -> None:
    generator = np.random.default_rng(0)
    ages = np.where(np.arange(200) < 100, 30.0, 70.0)
    times = np.where(np.arange(200) % 2, 1.5, 5.0)
    events = (times < 2).astype(float)
    times[np.flatnonzero((ages > 50) & (events == 0))[9:]] = 0.5  # 9 of these are beyond 3
    data, _ = patients(
        {**TIMES, "cut_points": [2.0, 3.0]},
        np.column_stack([times, events]),
        cells,
        evaluation={"subgroups": {"age": [50]}},
    )
    data.values = {"age": ages}
    predicted = np.sort(generator.random((200, 2)))[:, ::-1]
    found = subgroups(data, predicted)
    assert [each.num_patients for each in found] == [None, None]


def test_subgroups_of_a_number_have_its_share_of_variance(cells: DisclosureControl) -> None:
    generator = np.random.default_rng(0)
    predicted, age = generator.normal(10, 3, N), np.linspace(20, 90, N)
    truth = predicted + generator.normal(0, 2, N)
    data, _ = patients(NUMBER, truth, cells, evaluation={"subgroups": {"age": [50]}})
    data.values = {"age": age}
    young, _ = subgroups(data, predicted[:, None])
    below = age < 50
    assert young.discrimination is not None
    assert young.discrimination.value == pytest.approx(
        r2_score(truth[below], predicted[below]), abs=1e-5
    )
    assert young.calibration is not None
    assert young.calibration.value == pytest.approx((truth - predicted)[below].mean(), abs=1e-4)


SEEN = 400
AGE = 2.0  # log odds for one of age's deviations; the dose has none


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> LocalDataset:
    generator = np.random.default_rng(0)
    age, dose = generator.normal(50, 10, SEEN).round(1), generator.normal(5, 2, SEEN).round(2)
    ill = generator.random(SEEN) < 1 / (1 + np.exp(-AGE * (age - 50) / 10))
    rows = zip(age, dose, np.where(ill, "yes", "no"), strict=True)
    text = "age,dose,ill\n" + "".join(f"{a},{d},{y}\n" for a, d, y in rows)
    folder: Path = tmp_path_factory.mktemp("site")
    study = make_study(task=TWO_NUMBERS, scaling="local", arms={"fedavg": {}, "local": {}})
    return LocalDataset(make_site(folder, text), study)


def parameters(age: float = AGE, dose: float = 0.0) -> torch.Tensor:
    """Of a linear model: weights of both classes, then their intercepts."""
    return torch.tensor([0.0, 0.0, age, dose, 0.0, 0.0])


def test_a_column_without_a_weight_has_no_importance(dataset: LocalDataset) -> None:
    grown = permuted_losses(dataset, parameters(), None, "fedavg")
    assert grown is not None
    assert grown.shape == (len(dataset.tested_outcomes), 2)
    first, second = importance(dataset, grown[None])
    assert (first.column, second.column) == ("age", "dose")
    assert first.loss.low > 0.1
    assert abs(second.loss.low) + abs(second.loss.high) < 1e-12
    doubled = importance(dataset, np.stack([grown, grown]))  # two cuts: patients stay the units
    assert doubled == [first, second]


def test_of_many_rows_drawn_ones_are_tried(
    dataset: LocalDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table may be sorted by the outcome."""
    monkeypatch.setattr(explanation, "MOST_TRIED", 40)
    grown = permuted_losses(dataset, parameters(), None, "fedavg")
    assert grown is not None
    places = np.flatnonzero(np.isfinite(grown).all(axis=1))
    assert len(places) == 40
    assert places[-1] > 80


def as_scikit_learn_has_it(weights: torch.Tensor) -> LogisticRegression:
    """The same model of scaled inputs."""
    fit = LogisticRegression().fit(np.array([[0.0, 0], [1, 1]]), np.array([0, 1]))
    difference = (weights[2:4] - weights[:2]).numpy(), (weights[5] - weights[4]).numpy()
    fit.coef_, fit.intercept_ = difference[0][None].astype(float), np.array([float(difference[1])])
    return fit


def test_importance_is_that_of_scikit_learn(
    dataset: LocalDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explanation, "PERMUTATIONS", 100)
    weights = parameters(0.7, 0.5)  # so mild that no loss is clipped
    grown = permuted_losses(dataset, weights, None, "fedavg")
    assert grown is not None
    _, test = dataset.parts(None, "fedavg")
    known = permutation_importance(
        as_scikit_learn_has_it(weights),
        test.inputs.numpy().astype(float),
        dataset.tested_outcomes,
        scoring="neg_log_loss",
        n_repeats=100,
        random_state=0,
    )
    assert grown.mean(axis=0) == pytest.approx(known.importances_mean, abs=0.01)


def test_dependence_is_that_of_scikit_learn(dataset: LocalDataset) -> None:
    weights = parameters(1.5, -0.8)
    training, _ = dataset.parts(None, "fedavg")
    scaling = dataset.scaling(None, "fedavg")
    assert scaling is not None
    found = dependence(dataset, weights, None, "fedavg", ["age", "dose"])
    for column, each in enumerate(found):
        inside = (np.array(each.x) - scaling.mean[column]) / scaling.deviation[column]
        known = partial_dependence(
            as_scikit_learn_has_it(weights),
            training.inputs.numpy().astype(float),
            [column],
            method="brute",
            response_method="predict_proba",
            custom_values={column: inside},
        )
        assert list(each.y) == pytest.approx(known["average"][0].tolist(), abs=1e-5)


def test_coefficients_are_for_a_deviation_and_alone_is_a_ridge_regression(
    dataset: LocalDataset,
) -> None:
    effects = linear_effects(dataset.study, parameters())
    assert effects is not None
    assert effects.tolist() == [AGE, 0.0]
    scaling = dataset.scaling(None, "fedavg")
    age, dose = coefficients(dataset, effects, scaling, ())
    assert age.value == pytest.approx(AGE, rel=0.01)
    assert (age.refits, dose.value) == (None, 0)
    training, _ = dataset.rows_alone()
    assert dataset.own_scaling is not None
    told = [each.deviation or 0.0 for each in dataset.summary.columns[:2]]
    scales = training.inputs.std(axis=0)
    inputs, moved = training.inputs / scales, np.divide(told, dataset.own_scaling.deviation)
    fit = LogisticRegression(C=1 / RIDGE, tol=1e-10, max_iter=1000).fit(inputs, training.targets)
    assert age.alone is not None
    assert dose.alone is not None
    alone = (fit.coef_[0] * moved / scales).tolist()
    assert [age.alone.value, dose.alone.value] == pytest.approx(alone, abs=2e-3)
    assert age.alone.low < AGE < age.alone.high
    assert dose.alone.low < 0 < dose.alone.high


def test_the_folds_models_give_the_intervals_of_a_grouped_jackknife(dataset: LocalDataset) -> None:
    folds = np.array([[1.9, 0.1], [2.0, -0.1], [2.1, 0.0]])
    scaling = dataset.scaling(None, "fedavg")
    for cuts, quantile in ([folds], 4.303), ([folds, folds], 2.776):  # Student's; 2 and 4 degrees
        age, _ = coefficients(dataset, np.array([2.0, 0.0]), scaling, cuts)
        assert age.refits is not None
        half = quantile * np.sqrt(2 / 3 * (0.01 + 0.01))
        assert age.refits.high - age.refits.low == pytest.approx(2 * half, rel=0.01)


@pytest.mark.parametrize(("num_folds", "num_cuts"), [(2, 1), (5, 1), (5, 3)])
def test_intervals_of_few_folds_hold_the_truth(num_folds: int, num_cuts: int) -> None:
    draws, held = np.random.default_rng(3), 0
    for _ in range(400):
        values = draws.normal(2.0, 1.0, size=60)
        cuts = []
        for _ in range(num_cuts):
            fold = draws.permutation(60) % num_folds
            cuts.append(np.array([[values[fold != n].mean()] for n in range(num_folds)]))
        held += abs(values.mean() - 2.0) < half_width(cuts)[0]
    assert 0.92 <= held / 400 <= 0.98


def test_an_ensemble_has_no_coefficients(dataset: LocalDataset) -> None:
    assert linear_effects(dataset.study, torch.stack([parameters()] * 2)) is None
    assert linear_effects(dataset.study, parameters() * torch.nan) is None


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
        return measure_with_intervals(TWO, probabilities, labels, MAJORITY, resamples=60, seed=5)

    final = measured()
    assert measured() == final
    # The memory used does not change the draws.
    monkeypatch.setattr("erosion_client.evaluation.final_figures.CHUNK", 100)
    assert measured() == final

    generator = np.random.default_rng(5)
    aurocs, losses = [], []
    for drawn in generator.integers(25, size=(60, 25)):
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
    for seed in range(100):
        scores = distance * (generator.normal(size=num_patients) + distance * (labels - 0.5))
        found = intervals_of(1 / (1 + np.exp(-scores)), labels, seed)
        for name, value in truth.items():
            held[name] += found[name].low <= value <= found[name].high
    assert min(held.values()) >= 0.93 * 100, held


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
