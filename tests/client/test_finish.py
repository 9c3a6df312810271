"""The finish: by hand, against libraries, and from an arm's setting to the saved model."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import Tensor, nn

import erosion
from erosion.simulation.simulator import simulate
from erosion_client.dataset.local_dataset import Rows
from erosion_client.evaluation import finish, references
from erosion_client.evaluation.finish import (
    Fit,
    Regressed,
    average,
    finished,
    fit_classes,
    fit_number,
)
from erosion_client.evaluation.references import fit_reference, folds_of_patients
from erosion_client.training.hospital import Hospital
from erosion_common.algorithms.fedavg import FedAvg
from erosion_common.algorithms.weight_erosion import WeightErosion
from erosion_common.errors import CheckpointError
from erosion_common.formats.model_card import LAYERS, read_model
from erosion_common.learning.finished import Finished, features_of, predicted_by
from erosion_common.learning.models import build_model, flat_parameters
from erosion_common.learning.networks import Logistic, Mlp
from erosion_common.protocol import wire
from erosion_common.protocol.messages import EvaluateReply, EvaluateResult, FinishFigures
from erosion_common.protocol.performance import Estimate
from erosion_common.rounds.evaluation import problem_with_evaluation
from erosion_common.study.sections import REFERENCES, LocalReference
from erosion_common.study.study import Study
from erosion_common.tasks.survival import Survival
from erosion_common.tasks.task import Floats, Targets, Task
from erosion_server.output.report import report_values
from erosion_server.output.run_data import RunData
from tests.support.contexts import CONTEXT
from tests.support.five_hospitals import hospitals, study_with
from tests.support.hand_sized import cohort, update
from tests.support.said import raises
from tests.support.saved_model import run_folder
from tests.support.small_study import make_site, make_study
from tests.support.synthetic_run import make_run
from tests.support.tasks import read_task

EVIDENCE: dict[str, Any] = {"algorithm": "fedavg", "finish": "evidence"}
TASKS: dict[str, dict[str, Any]] = {
    "two": {"target": "y", "classes": ["no", "yes"]},
    "three": {"target": "y", "classes": ["low", "middle", "high"]},
    "number": {"outcome": "regression", "target": "y", "centre": 5.0, "spread": 2.0},
    "time": {
        "outcome": "survival",
        "target": {"time": "t", "event": "e"},
        "cut_points": [1.0, 2.0, 3.0],
    },
}


def seen(columns: Floats, offset: Floats, outcome: Floats, intercepts: int = 0) -> Regressed:
    return Regressed(columns, intercepts, offset, outcome, np.ones(len(outcome)))


def task_of(name: str) -> Task:
    return read_task({"kind": "tabular", "features": list("abcd"), **TASKS[name]})


def outcomes(name: str, score: Floats) -> Targets:
    if name == "two":
        return (score > 0).astype(np.int64)
    if name == "three":
        return np.digitize(score, [-0.5, 0.5]).astype(np.int64)
    if name == "number":
        return 5.0 + 2 * score
    return np.column_stack([np.exp(0.7 - score), np.arange(len(score)) % 4 > 0]).astype(float)


def made(
    name: str, count: int = 80, model: Any = None
) -> tuple[Task, nn.Module, Tensor, Tensor, Targets]:
    """A task, a model with drawn parameters, and patients: the first column decides."""
    task, draws = task_of(name), np.random.default_rng(3)
    inputs = draws.normal(size=(count, 4)) * [1, 2, 3, 4] + [0, 1, 0, -1]
    score = inputs[:, 0] + 0.5 * draws.normal(size=count)
    network = build_model(model or Logistic(start_deviation=0.5), (4,), task.num_outputs, seed=1)
    as_tensor = torch.from_numpy(inputs).float()
    return task, network, flat_parameters(network), as_tensor, outcomes(name, score)


def numbers(count: int) -> NDArray[np.int64]:
    return np.arange(count)


def test_one_column_by_hand() -> None:
    # Column (1, -1), outcomes (1, 0), curvature 2: the gradient 2 d - 2 / (1 + e^d) is 0.
    x, y, none = np.array([[1.0], [-1.0]]), np.array([[1.0], [0.0]]), np.zeros((2, 1))
    found = fit_classes(seen(x, none, y), np.array([1.0, 2.0]))
    assert found.values.tolist() == pytest.approx([1.0, 0.40106], abs=1e-5)
    # p = 0.59894; curvature 2 p (1 - p) + 2 = 2.48042; objective 1.02514 + 0.16085;
    # evidence = -1.18599 + log(2 / 2.48042) / 2
    assert found.evidence == pytest.approx(-1.29364, abs=1e-4)
    # By quadrature the chance of both outcomes with d ~ N(0, 1/2) is 0.27506: Laplace's is near.
    assert np.exp(found.evidence) == pytest.approx(0.2751, rel=0.01)


def test_a_slope_by_hand() -> None:
    # Offset (2, -2), outcomes (1, 0), curvature 4: 4 (a - 1) = 4 / (1 + e^(2 a)).
    offset, y = np.array([[2.0], [-2.0]]), np.array([[1.0], [0.0]])
    found = fit_classes(seen(np.empty((2, 0)), offset, y), np.array([4.0]))
    (slope,) = found.values
    assert slope == pytest.approx(1.0999, abs=5e-4)
    chance = 1 / (1 + np.exp(2 * slope))
    assert slope - 1 == pytest.approx(chance)
    # Curvature 4 + 2 * 4 p (1 - p), of which the variance is the inverse.
    assert found.variance == pytest.approx(1 / (4 + 8 * chance * (1 - chance)))


def test_a_number_by_hand() -> None:
    # Column (1, -1), numbers (1, -1), curvature 2: d = 2 / (2 + 2); squares 2 0.25 + 2 0.25 = 1.
    x, y = np.array([[1.0], [-1.0]]), np.array([[1.0], [-1.0]])
    found = fit_number(seen(x, np.zeros((2, 1)), y), np.array([1.0, 2.0]))
    assert found.values.tolist() == pytest.approx([1.0, 0.5])
    assert found.evidence == pytest.approx(np.log(2 / 4) / 2 - 2 / 2 * np.log(1.0))


@pytest.mark.parametrize("classes", [2, 3])
def test_without_an_offset_it_is_scikit_learns_regression(classes: int) -> None:
    from sklearn.linear_model import LogisticRegression

    draws = np.random.default_rng(0)
    x, labels = draws.normal(size=(60, 4)), draws.integers(classes, size=60)
    y = np.eye(classes)[labels][:, -1:] if classes == 2 else np.eye(classes)[labels]
    found = fit_classes(seen(x, np.zeros(y.shape), y), np.append(1.0, np.full(4 * y.shape[1], 3.0)))
    theirs = LogisticRegression(C=1 / 3, fit_intercept=False, tol=1e-10, max_iter=1000)
    theirs.fit(x, labels)
    np.testing.assert_allclose(found.values[1:].reshape(-1, 4), theirs.coef_, atol=1e-5)


def test_a_number_without_an_offset_is_scikit_learns_ridge() -> None:
    from sklearn.linear_model import Ridge

    draws = np.random.default_rng(2)
    x, y = draws.normal(size=(50, 3)), draws.normal(size=50)
    found = fit_number(seen(x, np.zeros((50, 1)), y[:, None]), np.array([1.0, 4.0, 4.0, 4.0]))
    theirs = Ridge(alpha=4.0, fit_intercept=False).fit(x, y)
    np.testing.assert_allclose(found.values[1:], theirs.coef_, atol=1e-9)


def test_survival_rows_are_those_of_a_pooled_regression() -> None:
    from sklearn.linear_model import LogisticRegression

    task, _, _, inputs, targets = made("time", 120)
    assert isinstance(task, Survival)
    rows, fit = finish._seen(
        task, inputs.double().numpy(), np.zeros((120, 3)), targets, np.ones(120)
    )
    died, survived = task.seen_intervals(targets)
    assert len(rows.outcome) == int((died + survived).sum())
    no_offset = replace(rows, offset=0 * rows.offset)
    found = fit(no_offset, np.array([1.0, *[0.5] * 7]))
    theirs = LogisticRegression(C=2.0, fit_intercept=False, tol=1e-10, max_iter=1000)
    theirs.fit(rows.columns, rows.outcome[:, 0])
    np.testing.assert_allclose(found.values[1:], theirs.coef_[0], atol=1e-5)


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("model", [None, Mlp(hidden=(5,))])
def test_last_layers_give_the_fitted_outputs(
    name: str, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One model with known values: a = 2, then b and d of each output."""
    task, network, parameters, inputs, targets = made(name, model=model)
    values: list[Floats] = []

    def known(of: Regressed, _fit: Any, *, alone: bool) -> Any:
        values.append(np.append(2.0, np.linspace(-1, 1, of.offset.shape[1] * of.columns.shape[1])))
        return [Fit(values[-1], 0.0, 0.0)], np.ones(1), -1e9 if alone else 0.0

    monkeypatch.setattr(finish, "average", known)
    found, _ = finished(task, network, parameters, inputs, targets, numbers(80))
    assert len(found.layers) == 1
    features, outputs = (each.numpy() for each in features_of(network, parameters, inputs))
    spread = np.where(features.std(axis=0) > 1e-9, features.std(axis=0), 1.0)
    z = (features - features.mean(axis=0)) / spread
    if isinstance(task, Survival):
        base, effects = values[0][1:4], values[0][4:]
        expected = 2 * (outputs + task.start) + base + (z @ effects)[:, None] - task.start
    else:
        of_output = values[0][1:].reshape(-1, 1 + z.shape[1])
        offset = outputs[:, 1:] - outputs[:, :1] if name == "two" else outputs
        expected = 2 * offset + of_output[:, 0] + z @ of_output[:, 1:].T
    if name == "two":
        expected = np.hstack([0 * expected, expected])
    np.testing.assert_allclose(
        predicted_by(task, network, found, inputs).numpy(),
        task.predictions(torch.from_numpy(expected)).numpy(),
        atol=1e-4,
    )


def fitted(name: str, factor: float | None, count: int = 150) -> tuple[float, FinishFigures, float]:
    """Return the loss on new patients, what is told, and the loss of a tuned ridge.

    The offset is `factor` times the truth; None: noise of a column that says nothing.
    """
    task, network, parameters, inputs, targets = made(name, 2 * count)
    last = torch.zeros_like(parameters)
    column, size = (3, 3.0) if factor is None else (0, 2.5 * factor)
    width = 4
    row = 1 if name == "two" else task.num_outputs - 1
    last[row * width + column] = size
    if name == "three":
        last[column] = -size
    new, old = slice(count, None), slice(0, count)
    found, told = finished(task, network, last, inputs[old], targets[old], numbers(count))
    predicted = task.usable(predicted_by(task, network, found, inputs[new]).numpy())
    training = Rows(inputs[old].double().numpy(), targets[old], numbers(count))
    folds = folds_of_patients(training, task, seed=1)
    ridge = fit_reference("ridge", task, training, inputs[new].double().numpy(), folds)
    losses = (
        task.patient_losses(each, targets[new]).mean() for each in (predicted, ridge.predictions)
    )
    ours, theirs = losses
    return float(ours), told, float(theirs)


@pytest.mark.parametrize("name", ["two", "number"])
def test_what_is_known_and_what_is_not(name: str) -> None:
    truth, noise, inverted = (fitted(name, factor) for factor in (1.0, None, -1.0))
    assert truth[1].slope.low > 0
    assert truth[1].share_alone < 0.2
    assert noise[1].slope.low < 0.2
    assert noise[1].share_alone > 0.5
    assert inverted[1].slope.high < 0
    assert inverted[1].share_alone < 0.9
    for loss, _, ridge in (truth, noise, inverted):
        assert loss < ridge + 0.02


def test_a_patient_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finish, "STRENGTHS", finish.STRENGTHS[::4])
    task, network, parameters, inputs, targets = made("two", 40)
    once, told = finished(task, network, parameters, inputs, targets, numbers(40))
    rows = inputs.repeat(2, 1), np.tile(targets, 2)
    twice, again = finished(task, network, parameters, *rows, np.tile(numbers(40), 2))
    assert again.share_alone == pytest.approx(told.share_alone)
    np.testing.assert_allclose(twice.mean(), once.mean(), rtol=1.3e-6, atol=1e-5)
    _, other = finished(task, network, parameters, *rows, numbers(80))
    assert other.share_alone != pytest.approx(told.share_alone, rel=1e-3)


def test_more_columns_than_patients_change_nothing_but_the_coordinates() -> None:
    draws = np.random.default_rng(4)
    wide = draws.normal(size=(20, 50))
    y = (wide[:, 0] > 0).astype(float)[:, None]
    turn = finish._components(wide, 300)
    assert turn.shape == (50, 20)
    none = np.zeros((20, 1))
    whole, turned = (
        average(seen(np.hstack([np.ones((20, 1)), x]), none, y, 1), fit_classes, alone=True)
        for x in (wide, wide @ turn)
    )
    np.testing.assert_allclose(whole[1], turned[1], atol=1e-6)
    assert whole[2] == pytest.approx(turned[2])
    assert finish._components(wide, 7).shape == (50, 7)


def test_the_users_update_shortens_the_step_and_is_not_in_it() -> None:
    own, near = update("own", 3.0, 4.0), update("near", 3.0, 5.0)
    settings = {"distance_penalty": 0.1, "size_penalty": 0.5}
    plain, left_out = (
        WeightErosion(**settings, finish=which).build(CONTEXT)  # type: ignore[arg-type]
        for which in ("none", "evidence")
    )
    step = left_out.update(left_out.init(2), cohort(own, near))
    # The weight 0.98 as ever; 0.98 (3, 5) / (1 + 0.98).
    assert step.weights == plain.update(plain.init(2), cohort(own, near)).weights
    assert step.delta.tolist() == pytest.approx([2.94 / 1.98, 4.9 / 1.98])
    alone = FedAvg(finish="evidence").build(CONTEXT)
    assert alone.update(alone.init(2), cohort(own)).delta.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    "changes",
    [
        {"arms": {"local": {"finish": "evidence"}}},
        {"arms": {"fine_tuning": {"finish": "evidence"}}},
        {"arms": {"krum": {"finish": "evidence"}}, "hospitals": list("abcdef")},
        {"arms": {"x": {**EVIDENCE, "own_parameters": ["output_layer"]}}},
        {"arms": {"x": EVIDENCE}, "model": {"name": "logistic", "frozen": ["1.bias"]}},
        {"arms": {"x": {**EVIDENCE, "finish": "yes"}}},
    ],
)
def test_where_it_makes_no_sense_it_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises((ValidationError, ValueError)) as refused:
        make_study(**changes)
    assert "finish" in str(refused.value)


def test_sealed_sums_are_refused() -> None:
    assert FedAvg().problem_with_sealing() is None
    assert "finish" in (FedAvg(finish="evidence").problem_with_sealing() or "")


FIVE: dict[str, Any] = {"x": EVIDENCE, "local": {}}


@pytest.fixture
def study() -> Study:
    return study_with(arms=FIVE)


def test_an_arm_does_not_see_the_users_outcomes_before_it(tmp_path: Path, study: Study) -> None:
    study = study.model_copy(update={"scaling": "local"})
    finals = []
    for name, turned in (("as they are", False), ("turned", True)):
        folder = tmp_path / name
        folder.mkdir()
        sites = hospitals(folder)
        if turned:
            path = folder / study.user / "data.csv"
            text = path.read_text()
            path.write_text(text.replace(",yes", ",?").replace(",no", ",yes").replace(",?", ",no"))
            assert path.read_text() != text
        finals.append(simulate(study, sites))
    one, other = finals
    assert torch.equal(one.finals["x"].params, other.finals["x"].params)
    assert not torch.equal(one.finals["local"].params, other.finals["local"].params)
    slopes = [found.evaluation.finishes["x"].slope.value for found in finals]
    assert slopes[0] > 0 > slopes[1]


def test_it_is_the_same_again_and_over_the_wire(tmp_path: Path, study: Study) -> None:
    one, other = (simulate(study, hospitals(tmp_path)) for _ in range(2))
    first = one.evaluated.predictor("x", one.finals["x"].params)
    again = other.evaluated.predictor("x", other.finals["x"].params)
    assert isinstance(first, Finished)
    assert isinstance(again, Finished)
    assert torch.equal(first.layers, again.layers)
    assert one.evaluation == other.evaluation
    sent = wire.decode_evaluate_result(wire.encode_result(one.evaluated))
    assert sent.header == one.evaluated.header
    arrived = sent.predictor("x", one.finals["x"].params)
    assert isinstance(arrived, Finished)
    assert torch.equal(arrived.layers, first.layers)
    assert problem_with_evaluation(sent, study, one.finals) is None
    name = "x (finish)"
    for layers in (
        first.layers[:, 1:],
        torch.full_like(first.layers, torch.nan),
        -first.layers,
        first.layers.repeat(60, 1),
        first.layers.double(),
    ):
        wrong = EvaluateResult(sent.header, {**sent.personal, name: layers})
        assert problem_with_evaluation(wrong, study, one.finals)
    without = sent.header.model_copy(update={"finishes": {}})
    assert problem_with_evaluation(EvaluateResult(without, sent.personal), study, one.finals)
    assert problem_with_evaluation(EvaluateResult(sent.header, {}), study, one.finals)


def test_with_folds_every_fold_has_its_own_finish(tmp_path: Path) -> None:
    study = study_with(arms=FIVE, evaluation={"folds": 2, "bootstrap": 100, "references": []})
    found = simulate(study, hospitals(tmp_path))
    assert found.evaluation.finishes.keys() == {"x"}
    assert found.evaluation.arms["x"]["log_loss"] < 1


def test_a_saved_model_predicts_with_it(tmp_path: Path) -> None:
    import pandas as pd

    base = torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0, 0.0])  # logits differ by the scaled age
    half, none = [0.0, 0.0, 0.5, 0.0, 0.0, 0.0], [0.0] * 6
    layers = torch.tensor([[3.0, *half], [1.0, *none]])
    frame = pd.DataFrame({"age": [50, 60], "sex": ["f", "m"]})
    whole = run_folder(tmp_path, parameters=Finished(base, layers))
    found = erosion.load_model(whole).predict_proba(frame)[:, 1]
    # Three parts of 1 / (1 + e^-0.5) = 0.622459 and one of a half.
    assert found.tolist() == pytest.approx([0.5, 0.75 * 0.622459 + 0.125], abs=1e-6)
    assert torch.equal(Finished(base, layers).mean(), 0.75 * torch.tensor(half))
    (tmp_path / LAYERS).write_bytes((tmp_path / LAYERS).read_bytes()[:-1])
    with pytest.raises(CheckpointError):
        read_model(tmp_path)
    (tmp_path / LAYERS).unlink()
    with pytest.raises(CheckpointError):
        read_model(tmp_path)


@pytest.mark.parametrize(
    ("slope", "alone", "warned"),
    [(-1.0, 0.25, True), (-0.2, 0.25, False), (-1.0, 0.75, False), (1.0, 0.25, False)],
)
def test_the_report_says_how_far_it_follows_the_others(
    slope: float, alone: float, warned: bool
) -> None:
    run = make_run()
    ends = Estimate(value=slope, low=slope - 0.5, high=slope + 0.5)
    arms = dict(run.result.arms)
    told = FinishFigures(slope=ends, share_alone=alone)
    arms["fedavg"] = arms["fedavg"].model_copy(update={"finish": told})
    result = run.result.model_copy(update={"arms": arms})
    values = report_values(RunData(run.study, run.records, result), "", {})
    assert any(
        f"{alone:.0%}".replace("%", " %") in sentence for sentence in values["below_metrics"]
    )
    assert len(values["cautions"]) == warned


def drawn(name: str, count: int, *, informative: bool) -> tuple[Floats, Targets]:
    """Patients whose outcome follows from the first column, or from nothing."""
    draws = np.random.default_rng(5)
    inputs = draws.normal(size=(count, 4))
    score = inputs[:, 0] if informative else draws.normal(size=count)
    return inputs, outcomes(name, score + 0.3 * draws.normal(size=count))


@pytest.mark.parametrize("reference", REFERENCES)
@pytest.mark.parametrize(
    ("name", "informative"), [*((name, True) for name in TASKS), ("two", False), ("time", False)]
)
@pytest.mark.usefixtures("few_candidates")
def test_a_reference_learns(name: str, reference: LocalReference, informative: bool) -> None:
    task = task_of(name)
    inputs, targets = drawn(name, 300, informative=informative)
    training = Rows(inputs[:150], targets[:150], np.arange(150))
    folds = folds_of_patients(training, task, seed=1)
    found = fit_reference(reference, task, training, inputs[150:], folds)
    base_rate = np.tile(task.base_rate(targets[:150]), (150, 1))
    loss, base = (
        float(task.patient_losses(predicted, targets[150:]).mean())
        for predicted in (found.predictions, base_rate)
    )
    if informative:
        assert loss < 0.75 * base
    else:
        assert loss < 1.06 * base


def test_trees_of_counts_predict_no_rate_of_0() -> None:
    task = read_task(
        {"kind": "tabular", "features": list("abcd")}
        | {"outcome": "count", "target": "y", "centre": 2.0, "spread": 2.0}
    )
    inputs, targets = drawn("number", 150, informative=True)
    counts = np.maximum(np.round(targets), 0.0) * (inputs[:, 0] > 0.5)
    for of_training in (counts, np.zeros(150)):  # nobody had any: nothing can be fitted
        training = Rows(inputs, of_training, np.arange(150))
        found = fit_reference(
            "boosted_trees", task, training, inputs, folds_of_patients(training, task, 1)
        )
        assert np.all((found.predictions > 0) == of_training.any())


def test_a_ridge_of_one_strength_is_scikit_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    from sklearn.linear_model import LogisticRegression

    monkeypatch.setattr(references, "STRENGTHS", (2.0,))
    task = task_of("two")
    inputs, targets = drawn("two", 80, informative=True)
    training = Rows(inputs, targets, np.arange(80))
    found = fit_reference("ridge", task, training, inputs, folds_of_patients(training, task, 1))
    standardised = (inputs - inputs.mean(axis=0)) / inputs.std(axis=0)
    # 2 (|w_0|^2 + |w_1|^2) with w_1 = -w_0 is |w_1 - w_0|^2; scikit-learn has half of that, and C
    # times the losses: C = 1 / 2.
    expected = LogisticRegression(C=0.5, tol=1e-8).fit(standardised, targets)
    assert found.predictions == pytest.approx(expected.predict_proba(standardised), abs=1e-3)


def test_rows_of_one_patient_are_in_one_fold() -> None:
    task = task_of("two")
    inputs, targets = drawn("two", 120, informative=True)
    patients = np.arange(120) // 3
    folds = folds_of_patients(Rows(inputs, targets, patients), task, seed=3)
    assert all(len(set(folds[patients == patient])) == 1 for patient in patients)
    assert set(folds) == set(range(5))


def rows_of(seed: int, count: int, *, turned: str = "") -> str:
    """A table with a split of its own; outcomes of its `turned` part are the other way round."""
    draws = np.random.default_rng(seed)
    lines = ["age,dose,split,ill"]
    for number in range(count):
        age, dose = draws.normal(60, 10), draws.normal(5, 2)
        part = "test" if number % 2 else "train"
        ill = ((age - 60) / 10 + draws.normal() > 0) != (part == turned)
        lines.append(f"{age:.3f},{dose:.3f},{part},{'yes' if ill else 'no'}")
    return "\n".join(lines) + "\n"


def compared(**evaluation: Any) -> Study:
    return Study.model_validate(
        {
            "name": "references",
            "user": "a",
            "hospitals": ["a", "b"],
            "rounds": 3,
            "task": {
                "kind": "tabular",
                "target": "ill",
                "classes": ["no", "yes"],
                "features": ["age", "dose"],
            },
            "model": {"name": "logistic"},
            "training": {"steps": 4, "batch_size": 8, "learning_rate": 0.1},
            "arms": ["fedavg", "local"],
            "evaluation": {"bootstrap": 100, **evaluation},
        }
    )


def ended(folder: Path, of: Study, *, turned: str = "") -> EvaluateReply:
    hospitals = {}
    for name, text in (("a", rows_of(1, 120, turned=turned)), ("b", rows_of(2, 120))):
        (folder / name).mkdir(parents=True)
        hospitals[name] = Hospital(make_site(folder / name, text, name=name))
    return simulate(of, hospitals).evaluation


@pytest.mark.usefixtures("few_candidates")
def test_the_better_reference_is_chosen_without_the_tested_patients(tmp_path: Path) -> None:
    of = compared(split_column="split")
    straight = ended(tmp_path / "straight", of)
    turned = ended(tmp_path / "turned", of, turned="test")
    assert straight.comparison is not None
    assert turned.comparison is not None
    assert set(straight.references) == {"ridge", "boosted_trees"}
    assert sum(straight.comparison.chosen.values()) == 1
    assert straight.comparison.chosen == turned.comparison.chosen
    assert straight.comparison.reference == turned.comparison.reference
    losses = [reply.references["ridge"]["log_loss"] for reply in (straight, turned)]
    assert losses[0] + 0.3 < losses[1]  # it was not fitted to them either


@pytest.mark.usefixtures("few_candidates")
def test_each_fold_chooses_its_reference_and_each_cut_has_its_p_value(tmp_path: Path) -> None:
    reply = ended(tmp_path, compared(folds=2, repeats=2))
    found = reply.comparison
    assert found is not None
    assert set(found.chosen) == {"local", "ridge", "boosted_trees"}
    assert sum(found.chosen.values()) == 4
    assert len(found.p_by_cut) == 2
    assert all(metrics.num_patients == 120 for metrics in reply.references.values())


@pytest.mark.usefixtures("few_candidates")
def test_a_study_without_local_training_is_compared_with_references(tmp_path: Path) -> None:
    of = compared(references=["ridge"])
    found = ended(
        tmp_path, of.model_copy(update={"arms": {"fedavg": of.arms["fedavg"]}})
    ).comparison
    assert found is not None
    assert (found.arm, found.reference) == ("fedavg", "ridge")


@pytest.mark.usefixtures("few_candidates")
def test_a_study_may_name_the_reference_or_have_none(tmp_path: Path) -> None:
    named = ended(tmp_path / "named", compared(compare=["fedavg", "boosted_trees"])).comparison
    assert named is not None
    assert (named.reference, named.chosen) == ("boosted_trees", {})
    reply = ended(tmp_path / "none", compared(references=[]))
    assert reply.references == {}
    assert reply.comparison is not None
    assert (reply.comparison.reference, reply.comparison.chosen) == ("local", {})


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"arms": {"ridge": {"algorithm": "fedavg"}, "local": {}}}, "ridge"),
        ({"evaluation": {"references": ["ridge", "ridge"]}}, "once"),
        ({"evaluation": {"references": [], "compare": ["fedavg", "ridge"]}}, "ridge"),
        ({"evaluation": {"compare": ["ridge", "local"]}}, "arms are"),
    ],
)
def test_a_study_whose_references_do_not_fit_is_refused(changes: dict[str, Any], told: str) -> None:
    with raises(ValueError, told):
        Study.model_validate({**compared().model_dump(), **changes})
