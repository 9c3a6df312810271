"""Curves, logarithms, cuts and indicators, against patsy, scipy and figures by hand."""

from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from scipy.interpolate import CubicSpline

from erosion_client.dataset.local_dataset import LocalDataset
from erosion_client.dataset.preprocessing import stand_ins, table_inputs
from erosion_client.evaluation.explanation import dependence, encoded_columns
from erosion_common.protocol.messages import FeatureSums, Scaling
from erosion_common.protocol.scaling import number_columns, pool, problem_with_sums
from erosion_common.tasks.features import NumberFeature
from erosion_common.tasks.inputs import TabularTask, few_for_inputs, stands_in
from erosion_common.tasks.preparations import input_terms, prepared, term_values
from tests.support.small_study import make_site, make_study
from tests.support.tasks import tabular

KNOTS = (30.0, 50.0, 65.0, 80.0)
NAN = float("nan")


def task_of(*features: dict[str, Any], **keys: Any) -> TabularTask:
    return tabular(target="ill", classes=[0, 1], features=list(features), **keys)


def columns_of(feature: NumberFeature, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    inner = prepared(feature, values)
    terms = input_terms(feature, "impute")
    return np.stack([term_values(term, inner) for term in terms], axis=1)


def test_each_column_is_the_natural_spline_through_its_values_at_the_knots() -> None:
    between = np.linspace(30, 80, 101)
    feature = NumberFeature(name="age", knots=KNOTS)
    at_knots, values = (columns_of(feature, np.asarray(x)) for x in (KNOTS, between))
    natural = CubicSpline(KNOTS, at_knots, bc_type="natural")(between)
    np.testing.assert_allclose(values, natural, atol=1e-12)
    # By hand at 50: (50 - 30)^3 / (80 - 30)^2.
    assert at_knots[1, 1] == pytest.approx(3.2)
    outside = columns_of(feature, np.array([0.0, 30.0, 90.0, 100.0, 110.0]))
    assert outside[:2, 1:].tolist() == [[0, 0], [0, 0]]
    np.testing.assert_allclose(np.diff(outside[2:], n=2, axis=0), 0, atol=1e-9)  # a line


def test_values_are_cut_before_their_logarithm_and_knots_are_on_its_scale() -> None:
    feature = NumberFeature(name="crp", winsorise=(1, 100), log=True, knots=(1, 10, 100))
    values = columns_of(feature, np.array([0.0, 10.0, 1000.0, NAN]))
    np.testing.assert_allclose(values[:3, 0], [0, log(10), log(100)])
    curve = NumberFeature(name="x", knots=(log(1), log(10), log(100)))
    np.testing.assert_allclose(values[:3, 1], columns_of(curve, values[:3, 0])[:, 1])
    assert np.isnan(values[3]).all()


def test_missing_numbers_become_the_mean_with_an_input_that_says_so() -> None:
    task = task_of({"name": "x", "missing": "indicator"}, {"name": "y", "knots": [0, 1, 2]})
    assert number_columns(task) == (True, False, True, True)
    rows = np.array([[1.0, 1.0], [NAN, 0.0], [5.0, 2.0]])
    scaling = Scaling(mean=(3, 0, 1, 0.5), deviation=(2, 1, 1, 0.5))
    assert table_inputs(task, rows, scaling).tolist() == [
        [-1, 0, 0, -0.5],  # the curve at 1 is 1 / 4
        [0, 1, -1, -1],
        [1, 0, 1, 2],  # and at 2: (8 - 2 + 0) / 4 = 1.5
    ]
    assert stands_in(task, scaled=False)
    means = (3.0, 0.0, 1.0, 0.5)
    replaced = stand_ins(task, rows, means, (2, 0, 3, 3), scaled=False)
    assert replaced == means
    assert table_inputs(task, rows, None, replaced)[1].tolist() == [3, 1, 0, 0]


def test_hospitals_sums_have_a_place_for_each_column_of_a_curve() -> None:
    task = task_of({"name": "x", "knots": [0, 1, 2]}, {"name": "c", "categories": ["a", "b"]})
    sums = FeatureSums(count=(4, 4, 0), total=(4, 8, 0), squares=(8, 32, 0))
    assert problem_with_sums(sums, task) is None
    pooled = pool([sums], task)
    assert pooled.mean == (1, 2, 0)
    assert pooled.deviation[1] == pytest.approx(2)
    few = FeatureSums(count=(4, 0), total=(4, 0), squares=(8, 0))
    assert problem_with_sums(few, task) is not None


def test_a_hospital_scales_trains_and_explains_what_is_prepared(tmp_path: Path) -> None:
    features = [{"name": "age", "knots": [40, 50, 60]}, {"name": "dose", "missing": "indicator"}]
    ages = np.linspace(30, 70, 81)
    lines = [f"{age},{'' if n % 4 == 0 else n % 7},{n % 2}" for n, age in enumerate(ages)]
    study = make_study(
        task={"kind": "tabular", "target": "ill", "classes": [0, 1], "features": features},
        scaling="local",
    )
    site = make_site(tmp_path, "\n".join(["age,dose,ill", *lines]))
    dataset = LocalDataset(site, study)
    assert dataset.sums is not None
    assert [count > 0 for count in dataset.sums.count] == [True, True, True, False]
    training, _ = dataset.parts(None, "fedavg")
    assert training.inputs[:, :3].mean(dim=0).abs().max() < 0.35  # by rounded means
    assert set(training.inputs[:, 3].tolist()) == {0, 1}
    bends = torch.tensor([0.0, 0, 0, 0, 0, 1, 0, 0, 0, 0])  # a weight of the curve alone
    (found,) = dependence(dataset, bends, None, "fedavg", ["age"])
    scaling = dataset.scaling(None, "fedavg")
    assert scaling is not None
    curve = columns_of(NumberFeature(name="age", knots=(40, 50, 60)), np.array(found.x))[:, 1]
    risks = 1 / (1 + np.exp(-(curve - scaling.mean[1]) / scaling.deviation[1]))
    np.testing.assert_allclose(found.y, risks, atol=1e-4)
    assert isinstance(study.task, TabularTask)
    named = [each.category for each in encoded_columns(study.task)]
    assert named == [None, "curve 1", None, "missing"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"log": True},
        {"log": True, "range": [0, 5]},
        {"knots": [1, 2]},
        {"knots": [1, 3, 3]},
        {"log": True, "range": [1, 9], "knots": [0, 1, 2]},
        {"winsorise": [5, 1]},
        {"knots": list(range(11))},
    ],
)
def test_what_cannot_be_prepared_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        NumberFeature(name="x", **wrong)


def test_few_patients_for_the_inputs_are_named() -> None:
    task = task_of({"name": "x", "knots": [0, 1, 2]})
    assert few_for_inputs(task, 20) == ""
    assert "19" in few_for_inputs(task, 19)
