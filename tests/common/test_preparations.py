"""Curves, logarithms, cuts and indicators, against patsy, scipy and figures by hand."""

from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy.interpolate import CubicSpline

from erosion_client.dataset.local_dataset import LocalDataset
from erosion_client.dataset.preprocessing import stand_ins, table_inputs
from erosion_client.evaluation.explanation import (
    coefficients,
    dependence,
    encoded_columns,
    importance,
    linear_effects,
    permuted_losses,
)
from erosion_common.protocol.messages import FeatureSums, Scaling
from erosion_common.protocol.performance import Performance, problem_with_performance
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
        {"knots": [0, 1, 1e308]},
        {"knots": [0, 5e-324, 1e-323]},
        {"knots": [0, 1, 1 + 1e-15]},
        {"log": True, "range": [1, 1e18], "knots": [1e17, 1e17 + 16, 1e17 + 32]},
        {"log": True, "range": [1, 9], "knots": [0, 1, 2]},
        {"winsorise": [5, 1]},
        {"knots": list(range(11))},
    ],
)
def test_what_cannot_be_prepared_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        NumberFeature(name="x", **wrong)


PAIRS: dict[str, Any] = {"interactions": [["x", "y"], ["c", "x"], ["c", "d"]], "missing": "impute"}
MIXED: list[dict[str, Any]] = [
    {"name": "x", "knots": [0, 1, 2]},
    {"name": "c", "categories": ["a", "b", "c"]},
    {"name": "y", "log": True, "winsorise": [1, 100]},
    {"name": "d", "categories": ["e", "f"], "missing": "mode"},
]


def test_interactions_are_products_of_scaled_inputs() -> None:
    task = task_of(*MIXED, **PAIRS)
    # x, its curve, c: b, c and missing, log(y), d; then x * y, c * x twice, c * d twice
    assert number_columns(task) == (True, True, *[False] * 3, True, *[False] * 6)
    assert task.input_shape == (12,)
    scaling = Scaling(
        mean=(1, 0, 0, 0, 0, log(10), *[0] * 6), deviation=(2, 1, 1, 1, 1, log(10), *[1] * 6)
    )
    rows = np.array([[5.0, 1, 100.0, 1], [5.0, 2, 1.0, 1], [NAN, NAN, 100.0, 0], [1e9, 1, 1e9, 1]])
    found = table_inputs(task, rows, scaling)[:, 7:].numpy()
    np.testing.assert_allclose(found[0], [2 * 1, 2, 0, 1, 0], rtol=1e-6)
    np.testing.assert_allclose(found[1], [2 * -1, 0, 2, 0, 1], rtol=1e-6)
    np.testing.assert_allclose(found[2], [0, 0, 0, 0, 0], atol=1e-6)
    assert found[3].tolist() == [100, 100, 0, 1, 0]  # no further than a number is
    unscaled = table_inputs(task, rows[:1], None)[:, 7:].numpy()
    np.testing.assert_allclose(unscaled, [[5 * log(100), 5, 0, 1, 0]], rtol=1e-6)
    named = [(each.feature, each.category) for each in encoded_columns(task)[7:]]
    assert named == [
        ("x × y", None),
        *[("c × x", c) for c in "bc"],
        ("c × d", "b, f"),
        ("c × d", "c, f"),
    ]


@settings(max_examples=30, deadline=None)
@given(st.permutations([["x", "y"], ["c", "x"], ["c", "d"]]), st.booleans())
def test_the_order_of_a_pair_is_of_no_consequence(pairs: list[list[str]], turned: bool) -> None:
    rows = np.array([[5.0, 1, 100.0, 1], [2.0, 2, 3.0, 1]])
    whole = table_inputs(task_of(*MIXED, **PAIRS), rows, None)
    changed = [pair[::-1] if turned else pair for pair in pairs]
    task = task_of(*MIXED, **{**PAIRS, "interactions": changed})
    again = table_inputs(task, rows, None)
    assert sorted(whole.T.tolist()) == sorted(again.T.tolist())
    one = {frozenset(each.column.split(" × ")) for each in task.products()}
    assert one == {frozenset(pair) for pair in pairs}


@pytest.mark.parametrize(
    "pairs", [[["x", "z"]], [["x", "x"]], [["x", "y"], ["y", "x"]], [["x", "y"]] * 101]
)
def test_pairs_that_are_none_are_refused(pairs: list[list[str]]) -> None:
    with pytest.raises(ValidationError):
        task_of(*MIXED, interactions=pairs)


def test_interactions_of_very_many_categories_are_refused() -> None:
    many = [{"name": name, "categories": list(range(1000))} for name in ("a", "b")]
    with pytest.raises(ValidationError, match="998,001"):
        task_of(*many, interactions=[["a", "b"]])


def test_a_hospital_explains_interactions_by_what_they_are_made_of(tmp_path: Path) -> None:
    """The outcome is of the product alone: without either column nothing is left of it."""
    draws = np.random.default_rng(0).normal(size=(300, 3))
    ill = (draws[:, 0] * draws[:, 1] > 0).astype(int)
    lines = [f"{a:.4f},{b:.4f},{c:.4f},{n}" for (a, b, c), n in zip(draws, ill, strict=True)]
    features = ["a", "b", "c"]
    task = {"kind": "tabular", "target": "ill", "classes": [0, 1], "features": features}
    study = make_study(task={**task, "interactions": [["a", "b"]]}, scaling="local")
    dataset = LocalDataset(make_site(tmp_path, "\n".join(["a,b,c,ill", *lines])), study)
    assert dataset.sums is not None
    assert dataset.sums.count[3] == 0  # no figure of it leaves
    product = torch.tensor([0.0, 0, 0, -2, 0, 0, 0, 2, 0, 0])
    grown = permuted_losses(dataset, product, None, "fedavg")
    assert grown is not None
    first, second, third = grown.mean(axis=0)
    assert min(first, second) > 0.3
    assert third == pytest.approx(0, abs=1e-12)
    (found,) = dependence(dataset, product, None, "fedavg", ["a"])
    training, _ = dataset.parts(None, "fedavg")
    scaling = dataset.scaling(None, "fedavg")
    assert scaling is not None
    at = (found.x[-1] - scaling.mean[0]) / scaling.deviation[0]
    expected = torch.sigmoid(4 * at * training.inputs[:, 1]).mean()
    assert found.y[-1] == pytest.approx(float(expected), abs=1e-5)
    effects = linear_effects(study, product)
    assert effects is not None
    *_, last = coefficients(dataset, effects, scaling, ())
    assert (last.column, last.category) == ("a × b", None)
    of = {each.name: each.deviation or 0 for each in dataset.summary.columns}
    moved = of["a"] / scaling.deviation[0] * of["b"] / scaling.deviation[1]
    assert last.value == pytest.approx(4 * moved, rel=1e-4)
    assert last.alone is not None
    assert last.alone.low > 1
    told = Performance(coefficients=(last,))
    assert problem_with_performance(told, study) is None
    strange = told.model_copy(
        update={"coefficients": (last.model_copy(update={"column": "a × c"}),)}
    )
    assert problem_with_performance(strange, study) is not None


def test_few_patients_for_the_inputs_are_named() -> None:
    task = task_of({"name": "x", "knots": [0, 1, 2]})
    assert few_for_inputs(task, 20) == ""
    assert "19" in few_for_inputs(task, 19)


def test_both_effects_of_a_logarithm_are_of_a_doubling(tmp_path: Path) -> None:
    """The model's, however it is scaled, and that of the user's patients alone."""
    logs, odds = np.random.default_rng(0).normal(size=(2, 300))
    rows = [f"{np.exp(a):.4f},{int(odd < a)}" for a, odd in zip(logs, odds, strict=True)]
    features = [{"name": "a", "log": True, "range": [1e-4, 1e4]}]
    task = {"kind": "tabular", "target": "ill", "classes": [0, 1], "features": features}
    site = make_site(tmp_path, "\n".join(["a,ill", *rows]))
    dataset = LocalDataset(site, make_study(task=task, scaling="federated"))
    own = dataset.own_scaling
    assert own is not None
    pooled = own.model_copy(update={"deviation": (2 * own.deviation[0],)})
    found = [coefficients(dataset, np.ones(1), each, ())[0] for each in (own, pooled)]
    moved = np.log(2) / [own.deviation[0], pooled.deviation[0]]
    assert [each.value for each in found] == pytest.approx(moved.tolist(), rel=1e-5)
    one, other = (each.alone.value for each in found if each.alone is not None)
    assert other == pytest.approx(one, rel=1e-5)


def test_an_effect_of_few_patients_is_not_told(tmp_path: Path) -> None:
    """Of one patient it would say whether it had the outcome."""
    ages = np.random.default_rng(0).normal(size=300)
    rows = [f"{age:.4f},{'ab'[n % 20 == 0]},{int(age > 0)}" for n, age in enumerate(ages)]
    features: list[Any] = ["x", {"name": "k", "categories": ["a", "b"]}]
    task = {"kind": "tabular", "target": "ill", "classes": [0, 1], "features": features}
    site = make_site(tmp_path, "\n".join(["x,k,ill", *rows]))
    dataset = LocalDataset(site, make_study(task=task, scaling="local"))
    training, tested = dataset.rows_alone()
    grown = permuted_losses(dataset, torch.tensor([0.0, 0, 1, 1, 0, 0]), None, "fedavg")
    assert grown is not None
    for num, told in ((0, True), (1, False)):  # more than have it
        dataset.cells.cell = int(training.inputs[:, 1].sum()) + num
        found = coefficients(dataset, np.ones(2), dataset.own_scaling, ())
        assert [each.alone is not None for each in found] == [True, told]
        dataset.cells.cell = int(tested[:, 1].sum()) + num
        assert len(importance(dataset, grown[None])) == 1 + told
