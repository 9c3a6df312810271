"""Where patients have several rows, every figure is of patients: one number for each."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss, roc_auc_score

from erosion.simulation.simulator import simulate
from erosion_client.training.hospital import Hospital
from erosion_common.protocol.messages import EvaluateReply, EvaluateRequest, TrainRequest
from erosion_common.study.study import Study
from tests.support.small_study import make_site, make_study

DRAWS = np.random.default_rng(8)
AGES = DRAWS.normal(60, 10, 80).round(3)  # of each patient at its first visit
VISITS = 1 + 4 * (DRAWS.random(80) < 0.3)
ILL = (AGES + DRAWS.normal(0, 10, 80) > 60).astype(int)
MODEL = torch.tensor([-0.05, 0.05, 3.0, -3.0])  # of the age: who is older is more often ill
OTHER = torch.tensor([-0.02, 0.03, 1.0, -1.0])
OUTCOMES: dict[str, dict[str, Any]] = {
    "classification": {"target": "ill", "classes": ["0", "1"]},
    "regression": {"outcome": "regression", "target": "days", "centre": 10, "spread": 5},
    "survival": {
        "outcome": "survival",
        "target": {"time": "days", "event": "ill"},
        "cut_points": [7, 14],
    },
}


def table(visits: np.ndarray, *, older: float = 0.0) -> str:
    """A row for each visit of each patient, `older` years later each; every third is tested."""
    lines = ["pid,age,days,ill,part"]
    for patient, count in enumerate(visits.tolist()):
        for visit in range(count):
            age, days = AGES[patient] + older * visit, 4 + (7 * patient) % 17
            part = "test" if patient % 3 == 0 else "train"
            lines.append(f"p{patient},{age:.3f},{days},{ILL[patient]},{part}")
    return "\n".join(lines) + "\n"


def study_of(outcome: str = "classification", **changes: Any) -> Study:
    task = {"kind": "tabular", "features": ["age"], **OUTCOMES[outcome]}
    evaluation = {"split_column": "part", "bootstrap": 100}
    return make_study(**{"task": task, "evaluation": evaluation, **changes})


def site(folder: Path, text: str, **keys: Any) -> Hospital:
    return Hospital(make_site(folder, text, data={"patient": "pid"}, **keys))


def evaluated(folder: Path, text: str, study: Study) -> EvaluateReply:
    dim = site(folder, text)._prepare(study).dim
    models = {"fedavg": MODEL.repeat(dim)[:dim] / 10, "local": OTHER.repeat(dim)[:dim] / 10}
    if study.task.outcome == "classification":
        models = {"fedavg": MODEL, "local": OTHER}
    return site(folder, text).evaluate(EvaluateRequest(study, models, None)).header


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_who_came_again_with_the_same_values_counts_as_before(tmp_path: Path, outcome: str) -> None:
    once, often = (
        evaluated(tmp_path, table(visits), study_of(outcome))
        for visits in (np.ones(80, dtype=int), VISITS)
    )
    assert once.arms["fedavg"].num_patients == often.arms["fedavg"].num_patients == 27
    for one, other in zip(figures_of(once), figures_of(often), strict=True):
        assert other == pytest.approx(one, rel=1e-6)
    assert often.class_counts == once.class_counts


def figures_of(reply: EvaluateReply) -> list[dict[str, float]]:
    """Every number of the reply, by its name."""
    assert reply.comparison is not None
    found = [{"p": reply.comparison.p_value, "mean": reply.comparison.mean_difference}]
    for metrics in (*reply.arms.values(), reply.base_rate):
        assert metrics is not None
        told = metrics.model_dump()
        ends = {f"{name}{end}": v[end] for name, v in told.pop("intervals").items() for end in v}
        found.append({name: value for name, value in told.items() if value is not None} | ends)
    return found


def test_a_patients_prediction_is_the_mean_of_its_rows(tmp_path: Path) -> None:
    """By hand, with scikit-learn; in a round's figures as in the final ones."""
    text, study = table(VISITS, older=9.0), study_of()
    tested = range(0, 80, 3)
    chances = np.array(
        [
            np.mean([1 / (1 + np.exp(-(0.1 * (AGES[p] + 9 * v) - 6))) for v in range(VISITS[p])])
            for p in tested
        ]
    )
    labels = ILL[list(tested)]
    final = evaluated(tmp_path, text, study).arms["fedavg"]
    asked = TrainRequest(study, "fedavg", 1, MODEL, None)
    of_round = site(tmp_path, text).train(asked).header.metrics
    assert of_round is not None
    for found in (final, of_round):
        assert found.num_patients == len(labels)
        assert found["auroc"] == pytest.approx(roc_auc_score(labels, chances), rel=1e-6)
        clipped = np.clip(chances, 0.01, 0.99)
        assert found["log_loss"] == pytest.approx(log_loss(labels, clipped), rel=1e-5)
        assert found["accuracy"] == pytest.approx(np.mean((chances > 0.5) == labels))


def test_patients_are_ever_ill_or_their_mean(tmp_path: Path) -> None:
    text = "\n".join(
        ["pid,age,days,ill,part"]
        + [
            f"p{p},{AGES[p]},{5 + 2 * v},{int(v == 1 and p % 2)},test"
            for p in range(20)
            for v in (0, 1)
        ]
        + [f"p{p},{AGES[p]},{5 + 2 * (p % 2)},{p % 2},train" for p in range(20, 40)]
    )
    found = evaluated(tmp_path, text, study_of())
    assert found.class_counts == {"0": 10, "1": 10}
    by_number = evaluated(tmp_path, text, study_of("regression")).base_rate
    assert by_number is not None
    assert by_number["rmse"] == pytest.approx(0)  # 6 days, the mean of the training part


def test_cross_fitted_figures_are_of_patients(tmp_path: Path) -> None:
    evaluation = {"folds": 3, "repeats": 2, "bootstrap": 100}
    training = {"steps": 2, "batch_size": 4, "learning_rate": 1e-12}
    alone: dict[str, Any] = {"hospitals": ["a"], "federation": {"quorum": 1}, "rounds": 1}
    study = study_of(evaluation=evaluation, training=training, **alone)
    found = simulate(study, {"a": site(tmp_path, table(VISITS))}).evaluation
    assert found.arms["local"].num_patients == 80
    assert found.base_rate is not None
    for figures in (found.arms["local"], found.base_rate):  # of 80 patients, in either cut
        assert 160 * figures["accuracy"] == pytest.approx(round(160 * figures["accuracy"]))
    expected = max(np.bincount(ILL)) / 80
    assert found.base_rate["majority_accuracy"] == pytest.approx(expected)


@pytest.mark.parametrize("arm", ["gems", "fedavg"])
def test_what_others_learn_of_a_model_here_is_of_patients(tmp_path: Path, arm: str) -> None:
    training = {"steps": 2, "batch_size": 4, "learning_rate": 1e-12}
    study = study_of(arms=[arm, "local"], training=training)
    told = []
    for visits in (np.ones(80, dtype=int), VISITS):
        hospital = site(tmp_path, table(visits))
        first = hospital.train(TrainRequest(study, arm, 1, MODEL, None))
        if arm == "gems":
            told.append(first.attachments["ball"].tolist())
        else:
            told.append([first.header.own_loss])
    assert told[1] == pytest.approx(told[0], rel=1e-4)
