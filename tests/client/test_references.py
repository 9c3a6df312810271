"""Local references: tuned inside the user's training part, and measured as every arm is."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from erosion.simulation.simulator import simulate
from erosion_client.dataset.local_dataset import Rows
from erosion_client.evaluation import references
from erosion_client.evaluation.references import fit_reference, folds_of_patients
from erosion_client.training.hospital import Hospital
from erosion_common.protocol.messages import EvaluateReply
from erosion_common.study.sections import REFERENCES, LocalReference
from erosion_common.study.study import Study
from erosion_common.tasks import AnyTask
from erosion_common.tasks.task import Floats, Targets
from tests.support.said import raises
from tests.support.small_study import make_site

FEATURES = {"kind": "tabular", "features": ["a", "b", "c"]}
TASKS: dict[str, dict[str, Any]] = {
    "two classes": {"target": "y", "classes": ["no", "yes"]},
    "three classes": {"target": "y", "classes": ["low", "middle", "high"]},
    "regression": {"outcome": "regression", "target": "y", "centre": 5.0, "spread": 2.0},
    "survival": {
        "outcome": "survival",
        "target": {"time": "t", "event": "e"},
        "cut_points": [1.0, 2.0, 3.0],
    },
}


def made(name: str, count: int, *, informative: bool) -> tuple[Floats, Targets]:
    """Patients whose outcome follows from the first column, or from nothing."""
    draws = np.random.default_rng(5)
    inputs = draws.normal(size=(count, 3))
    score = (inputs[:, 0] if informative else draws.normal(size=count)) + 0.3 * draws.normal(
        size=count
    )
    if name == "two classes":
        return inputs, (score > 0).astype(np.int64)
    if name == "three classes":
        return inputs, np.digitize(score, [-0.5, 0.5]).astype(np.int64)
    if name == "regression":
        return inputs, 5.0 + 2 * score
    return inputs, np.column_stack([np.exp(0.7 - score), np.arange(count) % 4 > 0]).astype(float)


@pytest.mark.parametrize("reference", REFERENCES)
@pytest.mark.parametrize(
    ("name", "informative"),
    [*((name, True) for name in TASKS), ("two classes", False), ("survival", False)],
)
def test_a_reference_learns(name: str, reference: LocalReference, informative: bool) -> None:
    task = TypeAdapter[Any](AnyTask).validate_python({**FEATURES, **TASKS[name]})
    inputs, targets = made(name, 300, informative=informative)
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


def test_a_ridge_of_one_strength_is_scikit_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    from sklearn.linear_model import LogisticRegression

    monkeypatch.setattr(references, "STRENGTHS", (2.0,))
    task = TypeAdapter[Any](AnyTask).validate_python({**FEATURES, **TASKS["two classes"]})
    inputs, targets = made("two classes", 80, informative=True)
    training = Rows(inputs, targets, np.arange(80))
    found = fit_reference("ridge", task, training, inputs, folds_of_patients(training, task, 1))
    standardised = (inputs - inputs.mean(axis=0)) / inputs.std(axis=0)
    # 2 (|w_0|^2 + |w_1|^2) with w_1 = -w_0 is |w_1 - w_0|^2; scikit-learn has half of that, and C
    # times the losses: C = 1 / 2.
    expected = LogisticRegression(C=0.5, tol=1e-8).fit(standardised, targets)
    assert found.predictions == pytest.approx(expected.predict_proba(standardised), abs=1e-3)


def test_rows_of_one_patient_are_in_one_fold() -> None:
    task = TypeAdapter[Any](AnyTask).validate_python({**FEATURES, **TASKS["two classes"]})
    inputs, targets = made("two classes", 120, informative=True)
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


def study(**evaluation: Any) -> Study:
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


def test_the_better_reference_is_chosen_without_the_tested_patients(tmp_path: Path) -> None:
    of = study(split_column="split")
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


def test_each_fold_chooses_its_reference_and_each_cut_has_its_p_value(tmp_path: Path) -> None:
    of = study(folds=3, repeats=2)
    reply, again = (ended(tmp_path / name, of) for name in ("once", "again"))
    assert reply == again
    found = reply.comparison
    assert found is not None
    assert set(found.chosen) == {"local", "ridge", "boosted_trees"}
    assert sum(found.chosen.values()) == 6
    assert len(found.p_by_cut) == 2
    assert all(metrics.num_patients == 120 for metrics in reply.references.values())


def test_a_study_without_local_training_is_compared_with_references(tmp_path: Path) -> None:
    of = study().model_copy(update={"arms": {"fedavg": study().arms["fedavg"]}})
    found = ended(tmp_path, of).comparison
    assert found is not None
    assert found.arm == "fedavg"
    assert found.reference in REFERENCES


def test_a_study_may_name_the_reference_or_have_none(tmp_path: Path) -> None:
    named = ended(tmp_path / "named", study(compare=["fedavg", "boosted_trees"])).comparison
    assert named is not None
    assert (named.reference, named.chosen) == ("boosted_trees", {})
    reply = ended(tmp_path / "none", study(references=[]))
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
        Study.model_validate({**study().model_dump(), **changes})
