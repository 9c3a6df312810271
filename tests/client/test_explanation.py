"""Importance, dependence and coefficients, against what is known of the model."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from erosion_client.dataset.local_dataset import LocalDataset
from erosion_client.evaluation.explanation import (
    RIDGE,
    coefficients,
    dependence,
    importance,
    linear_effects,
    permuted_losses,
)
from tests.support.small_study import TWO_NUMBERS, make_site, make_study

N = 400
AGE = 2.0  # log odds for one of age's deviations; the dose has none


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> LocalDataset:
    generator = np.random.default_rng(0)
    age, dose = generator.normal(50, 10, N).round(1), generator.normal(5, 2, N).round(2)
    ill = generator.random(N) < 1 / (1 + np.exp(-AGE * (age - 50) / 10))
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


def test_the_mean_risk_grows_with_the_column_that_counts(dataset: LocalDataset) -> None:
    found = [*dependence(dataset, parameters(), None, "fedavg", ["age", "dose"])]
    assert [each.column for each in found] == ["age", "dose"]
    age, dose = found
    assert list(age.y) == sorted(age.y)
    assert len(set(dose.y)) == 1
    scaling = dataset.scaling(None, "fedavg")
    assert scaling is not None
    inside = (np.array(age.x) - scaling.mean[0]) / scaling.deviation[0]
    assert np.allclose(age.y, 1 / (1 + np.exp(-AGE * inside)), atol=1e-4)


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
    inputs = training.inputs / training.inputs.std(axis=0)
    fit = LogisticRegression(C=1 / RIDGE, tol=1e-10, max_iter=1000).fit(inputs, training.targets)
    assert age.alone is not None
    assert dose.alone is not None
    assert [age.alone.value, dose.alone.value] == pytest.approx(fit.coef_[0].tolist(), abs=2e-3)
    assert age.alone.low < AGE < age.alone.high
    assert dose.alone.low < 0 < dose.alone.high


def test_the_folds_models_give_the_intervals_of_a_grouped_jackknife(dataset: LocalDataset) -> None:
    folds = np.array([[1.9, 0.1], [2.0, -0.1], [2.1, 0.0]])
    scaling = dataset.scaling(None, "fedavg")
    age, _ = coefficients(dataset, np.array([2.0, 0.0]), scaling, [folds, folds])
    assert age.refits is not None
    half = 1.96 * np.sqrt(2 / 3 * (0.01 + 0.01))
    assert age.refits.high - age.refits.low == pytest.approx(2 * half, rel=0.01)


def test_an_ensemble_has_no_coefficients(dataset: LocalDataset) -> None:
    assert linear_effects(dataset.study, torch.stack([parameters()] * 2)) is None
