"""Newton's regression against the pooled analysis, by hand, and within a site's limits."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge

from erosion.simulation.simulator import simulate, timeless
from erosion_client.training.hospital import Hospital
from erosion_client.training.limits import check_limits
from erosion_common.aggregation.cohort import MemoryCohort, Update
from erosion_common.algorithms.newton import FIT, Newton
from erosion_common.errors import Refusal
from erosion_common.protocol.performance import Coefficient
from erosion_common.rounds.study import StudyOutcome
from erosion_common.study.study import Study
from erosion_common.tasks.task import Floats
from tests.support.contexts import context
from tests.support.local_works import U, along, local_round, work
from tests.support.local_works import layout as one_column
from tests.support.small_study import TWO_NUMBERS, counts, make_site, make_study

NAMES = ("a", "b", "c")
CLASSES: dict[str, Any] = {**TWO_NUMBERS, "features": ["x", "z", "t"], "target": "y"}
NUMBER: dict[str, Any] = {
    **{key: CLASSES[key] for key in ("kind", "features", "target")},
    "outcome": "regression",
    "centre": 3.0,
    "spread": 2.0,
}
COUNT: dict[str, Any] = {**NUMBER, "outcome": "count", "centre": 1.5, "spread": 1.5}


def drawn(name: str, count: int = 150) -> tuple[Floats, Floats]:
    """Three columns and a score that they tell, with an effect that differs by hospital."""
    draws = np.random.default_rng(ord(name))
    columns = draws.normal(size=(count, 3)).astype(np.float32).astype(np.float64)
    columns[:, 2] = columns[:, 2] > 0.3 * NAMES.index(name)
    score = columns @ [1.0, -0.5 + 0.5 * NAMES.index(name), 0.4] + draws.logistic(size=count)
    return columns, score


def outcomes(score: Floats, task: dict[str, Any]) -> Floats:
    if task is COUNT:
        return np.floor(np.exp(np.clip(0.4 * score, -3, 3)))
    return (score > 0.2).astype(float) if task is CLASSES else 3.0 + score


def text(columns: Floats, target: Floats, task: dict[str, Any]) -> str:
    words = {1.0: "yes", 0.0: "no"}
    said = [words[y] if task is CLASSES else repr(y) for y in target.tolist()]
    lines = [
        f"{x!r},{z!r},{t!r},{'train' if row % 5 else 'test'},{y}"
        for row, ((x, z, t), y) in enumerate(zip(columns.tolist(), said, strict=True))
    ]
    return "\n".join(["x,z,t,part,y", *lines]) + "\n"


def study_of(task: dict[str, Any], **changes: Any) -> Study:
    arm = changes.pop("arm", {})
    return make_study(
        **{
            "hospitals": list(NAMES),
            "task": task,
            "rounds": 10,
            "arms": {"newton": arm},
            "evaluation": {"split_column": "part", "bootstrap": 100},
            **changes,
        }
    )


def hospitals(folder: Path, task: dict[str, Any]) -> dict[str, Hospital]:
    made = {}
    for name in NAMES:
        columns, score = drawn(name)
        content = text(columns, outcomes(score, task), task)
        limits = {"min_local_steps": 1, "min_cell": 10}
        made[name] = Hospital(
            make_site(folder, content, name=name, file=f"{name}.csv", limits=limits)
        )
    return made


def ran(folder: Path, task: dict[str, Any], **changes: Any) -> StudyOutcome:
    return simulate(study_of(task, **changes), hospitals(folder, task), clock=timeless)


def pooled(task: dict[str, Any], names: tuple[str, ...] = NAMES) -> tuple[Floats, Floats]:
    """The training patients of all hospitals."""
    found = [drawn(name) for name in names]
    trained = np.arange(len(found[0][1])) % 5 > 0
    columns = np.concatenate([columns[trained] for columns, _ in found])
    return columns, np.concatenate([outcomes(score, task)[trained] for _, score in found])


def coefficients_of(outcome: StudyOutcome, task: dict[str, Any]) -> Floats:
    """Those of the columns, then the intercept."""
    values = outcome.finals["newton"].params.double().numpy()
    if task is COUNT:
        intercept: Floats = np.log([1.0, 1.0, 1.0, 1.5])
        return values + intercept
    if task is NUMBER:
        return values * 2.0 + [0.0, 0.0, 0.0, 3.0]
    return np.append(values[3:6] - values[:3], values[7] - values[6])


def shown(outcome: StudyOutcome) -> tuple[Coefficient, ...]:
    assert outcome.evaluation.performance is not None
    return outcome.evaluation.performance.coefficients


def with_intercept(columns: Floats) -> Floats:
    return np.column_stack([columns, np.ones(len(columns))])


# Of statsmodels 0.15.0 for the patients of `pooled`, with X = with_intercept(columns):
# Logit(target, X).fit(method="newton", tol=1e-14); OLS(target, X).fit(); GLM(target, X,
# family=families.Poisson()).fit(scale="X2", tol=1e-14). `params`, then `bse`, of x, z, t and the
# intercept.
STATSMODELS: dict[str, tuple[list[float], list[float]]] = {
    "logistic": (
        [0.9784390647, -0.09772522034, 0.2450734424, 0.0209045929],
        [0.1370072916, 0.1152917216, 0.2391135123, 0.1503827746],
    ),
    "linear": (
        [0.9361581224, -0.0958317134, 0.3360842047, 3.15807514],
        [0.1018084008, 0.1045735109, 0.2118947193, 0.134205247],
    ),
    "poisson": (
        [0.4653197759, 0.03916504753, -0.06291109304, 0.09055590404],
        [0.09505757623, 0.1014486493, 0.2010103003, 0.1345801787],
    ),
}


@pytest.mark.parametrize(
    ("name", "task"), [("logistic", CLASSES), ("linear", NUMBER), ("poisson", COUNT)]
)
def test_it_is_the_regression_of_the_pooled_patients(
    tmp_path: Path, name: str, task: dict[str, Any]
) -> None:
    outcome, (expected, errors) = ran(tmp_path, task), STATSMODELS[name]
    assert coefficients_of(outcome, task) == pytest.approx(expected, abs=1e-6)
    known = outcome.finals["newton"].algorithm_state.errors.double().numpy()
    if task is CLASSES:
        known = np.append(known[3:6] - known[:3], known[7] - known[6])
    unit = 2.0 if task is NUMBER else 1.0  # of the target
    assert known * unit == pytest.approx(errors, abs=1e-6)

    ratios = []  # of odds, means or, of the linear one, of exponentials; for one unit of a column
    for number, each in enumerate(shown(outcome)):
        assert each.pooled is not None
        of_one = each.value / expected[number]  # deviations, rounded
        ends = np.array([each.pooled.low, each.pooled.high])
        ratios.append(np.exp(np.sort(ends / of_one)))
    middles, halves = np.array(expected[:3]), 1.959963985 * np.array(errors[:3])
    assert np.array(ratios) == pytest.approx(
        np.exp(np.column_stack([middles - halves, middles + halves])), abs=5e-6
    )

    last, ended = outcome.records["newton"][-2:]
    assert (last.outcome, ended.outcome) == ("done", "stopped")
    assert ended.round <= (4 if task is NUMBER else 8)
    assert set(outcome.finals["newton"].weights.values()) == {1.0}


@pytest.mark.parametrize("task", [CLASSES, NUMBER, COUNT], ids=["classes", "number", "count"])
def test_a_ridge_is_that_of_the_pooled_patients(tmp_path: Path, task: dict[str, Any]) -> None:
    outcome = ran(tmp_path, task, arm={"penalty": 0.05})
    columns, target = pooled(task)
    strength = 0.05 * len(target)
    fit: Any = Ridge(alpha=strength, tol=1e-12)
    if task is COUNT:
        fit = PoissonRegressor(alpha=0.05, tol=1e-12, solver="newton-cholesky")
    if task is CLASSES:
        fit = LogisticRegression(C=1 / strength, tol=1e-12, solver="newton-cholesky")
    fit.fit(columns, target)
    expected = np.append(np.ravel(fit.coef_), fit.intercept_)
    assert coefficients_of(outcome, task) == pytest.approx(expected, abs=2e-6)
    assert outcome.finals["newton"].stopped
    assert all(each.pooled is None for each in shown(outcome))


def test_hospitals_far_from_the_user_lose_weight(tmp_path: Path) -> None:
    outcome = ran(tmp_path, CLASSES, arm={"distance_penalty": 2.0}, rounds=12)
    weights = outcome.finals["newton"].weights
    assert (weights["a"], weights["b"], weights["c"]) == (1.0, 0.0, 0.0)
    columns, target = pooled(CLASSES, ("a",))
    fit = LogisticRegression(C=np.inf, tol=1e-12, solver="newton-cholesky").fit(columns, target)
    assert coefficients_of(outcome, CLASSES)[:3] == pytest.approx(fit.coef_[0], abs=1e-5)
    assert all(each.pooled is None for each in shown(outcome))


def sent(labels: tuple[int, ...], agent: str = "a") -> Update:
    of = work(0.0, labels, agent=agent)
    outcome = local_round(Newton(), of, one_column)
    return Update(agent, 1, outcome.delta, len(labels), len(labels), outcome.attachments)


def test_a_round_by_hand() -> None:
    # At t = 0 all chances are 1/2: H = n/4 (1 1; 1 1), and the difference of the classes' scores
    # moves by (share ill - 1/2) / (1/4): 2 and 0 for three of three and three of six.
    a, b = sent((1, 1, 1, 1, 1, 1)), sent((0, 1, 0, 1, 0, 1), "b")
    assert [along(a.delta), along(b.delta)] == pytest.approx([0.5, 0.0])
    assert a.attachments[FIT].tolist() == pytest.approx([6 * np.log(2), 6])
    algorithm = Newton().build(context())
    step = algorithm.update(algorithm.init(4), MemoryCohort(a, {"b": b}))
    assert along(step.delta) == pytest.approx(0.25)
    assert step.weights == {"a": 1.0, "b": 1.0}


def layout_of_two() -> dict[str, int]:
    return {"weight": 2, "bias": 2}


def test_columns_that_say_the_same_end_the_arm_with_the_remedy() -> None:
    a = sent((1, 0, 1, 0, 1, 1))  # the one column is 1 for everybody, as the intercept's
    algorithm = Newton().build(context(**layout_of_two()))
    step = algorithm.update(algorithm.init(4), MemoryCohort(a, {}))
    assert step.outcome == "stopped"
    assert "penalty" in step.note
    assert not step.delta.any()
    ridge = Newton(penalty=0.1)
    with_ridge = local_round(ridge, work(0.0, (1, 0, 1, 0, 1, 1)), one_column)
    a = replace(a, delta=with_ridge.delta, attachments=with_ridge.attachments)
    algorithm = ridge.build(context(**layout_of_two()))
    assert algorithm.update(algorithm.init(4), MemoryCohort(a, {})).outcome == "done"


def test_separated_classes_end_the_arm_with_the_remedy() -> None:
    inputs = torch.linspace(-1, 1, 12)[:, None]
    algorithm = Newton().build(context(rounds=30, **layout_of_two()))
    state, params = algorithm.init(4), 0.0 * U
    for number in range(1, 31):
        of = work(0.0, (0,) * 6 + (1,) * 6, inputs=inputs, received=params)
        made = local_round(Newton(), of, one_column)
        update = Update("a", number, made.delta, 12, 12, made.attachments)
        step = algorithm.update(state, MemoryCohort(update, {}))
        state, params = step.state, params + step.delta
        if step.outcome == "stopped":
            break
    assert number < 30
    assert "penalty" in step.note
    assert bool(params.isfinite().all())


def bent_near_one_patient() -> torch.Tensor:
    """Three columns of many patients each, whose second difference is that of one patient."""
    values = torch.linspace(-1, 1, 30)
    return torch.stack([values.clamp(max=float(values[n])) for n in (14, 15, 16)], dim=1)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"labels": (0, 1) * 2}, "coefficient"),  # fewer than three for each of two
        ({"labels": (0,) * 28 + (1,) * 2, "smallest_cell": 3}, "the outcome"),
        ({"inputs": torch.tensor([[0.0]] * 28 + [[1.0]] * 2), "smallest_cell": 3}, "x has"),
        ({"patients": torch.arange(30) // 2}, "several rows"),
        ({"inputs": bent_near_one_patient()}, "combination"),
    ],
    ids=["few patients", "few ill", "few with a category", "several rows", "close knots"],
)
def test_a_site_refuses_sums_that_tell_of_a_few(changes: dict[str, Any], named: str) -> None:
    given = {"labels": (0, 1) * 15, "inputs": None, **changes}
    labels, inputs = given.pop("labels"), given.pop("inputs")
    if inputs is None:
        inputs = torch.linspace(-1, 1, len(labels))[:, None]
    with pytest.raises(Refusal) as problem:
        Newton().train(work(0.0, labels, inputs=inputs, **given))
    assert named in str(problem.value)
    many = torch.linspace(-1, 1, 30)[:, None]
    assert Newton().train(work(0.0, (0, 1) * 15, inputs=many, smallest_cell=3)).delta.any()


def test_crafted_parameters_do_not_single_a_patient_out() -> None:
    inputs = torch.linspace(-1, 1, 30)[:, None]
    labels = (0,) * 15 + (1,) * 15
    of = work(0.0, labels, inputs=inputs, smallest_cell=3)
    assert Newton().train(of).delta.any()
    crafted = torch.tensor([0.0, 500.0, 0.0, -500 * float(inputs[4])])  # all but one are certain
    with pytest.raises(Refusal):
        Newton().train(replace(of, received=crafted))


def test_a_site_lets_no_gradient_leave_unless_its_limits_say_so(tmp_path: Path) -> None:
    study = study_of(CLASSES, training={"epochs": 9, "batch_size": 4})
    with pytest.raises(Refusal) as problem:
        check_limits(make_site(tmp_path), study, counts(60))
    assert "limits.min_local_steps = 1" in str(problem.value)
    check_limits(make_site(tmp_path, limits={"min_local_steps": 1}), study, counts(60))


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"name": "mlp"}},
        {"task": {**CLASSES, "classes": ["no", "some", "yes"]}},
        {"task": {**CLASSES, "class_weights": "balanced"}},
        {"arm": {"own_parameters": ["output_bias"]}},
        {"arm": {"finish": "evidence"}},
        {"federation": {"compression": "int8"}},
        {
            "federation": {"sealed": True, "quorum": 6},
            "hospitals": list("abcdef"),
            "scaling": "local",
        },
        {"privacy": {"epsilon": 3.0, "delta": 1e-3, "learning_rate": 0.1}},
    ],
)
def test_a_study_that_it_cannot_serve_is_refused_when_it_is_loaded(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as problem:
        study_of(**{"task": CLASSES, **changes})
    assert "newton" in str(problem.value)
