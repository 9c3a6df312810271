"""A mistake in a task of one's own is told before anything is trained with it."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from erosion_client.dataset.task_checks import check_task, checked_targets
from erosion_client.training.hospital import Hospital
from erosion_common.algorithms.fedavg import FedAvg
from erosion_common.errors import Refusal
from erosion_common.learning.local_work import LocalAnswer, LocalOutcome, LocalWork
from erosion_common.protocol.messages import TrainRequest
from erosion_common.tasks import REGISTRY
from tests.support.said import raises, says
from tests.support.small_study import make_site, make_study, twenty_patients
from tests.support.task_examples import EXAMPLES, example, patients

every_task = pytest.mark.parametrize("name", sorted(REGISTRY))


@every_task
@pytest.mark.parametrize("count", [1, 2, 3, 40])
def test_the_tasks_of_the_program_pass(name: str, count: int) -> None:
    task = example(name)
    for measures in (True, False):
        check_task(task, patients(task, count=count), measures=measures)


@pytest.mark.parametrize("count", [3, 40, 100])
def test_how_many_patients_there_are_is_not_told(count: int) -> None:
    wrong = changed("patient_losses", lambda losses: losses[:, None])
    with raises(Refusal, "64", "1"):
        check_task(wrong, patients(wrong, count=count), measures=True)
    wrong = changed("targets", lambda targets: targets[1:])
    with raises(Refusal, "another length") as refusal:
        checked_targets(wrong, np.arange(float(count))[:, None])
    assert str(count) not in refusal.value.public.replace("float64", "")


def test_patients_of_whom_nothing_was_seen_are_no_mistake_of_the_task() -> None:
    check_task(example("survival"), np.zeros((5, 2)), measures=True)


def changed(method: str, by: Callable[..., Any]) -> Any:
    """The regression with one method that does something to what it gave."""
    task = example("regression")
    right = getattr(type(task), method)

    def wrong(self: Any, *arguments: Any) -> Any:
        return by(right(self, *arguments))

    kind: Any = type("Wrong", (type(task),), {method: wrong, "__module__": __name__})
    return kind.model_validate(task.model_dump())


@pytest.mark.parametrize(
    ("method", "by", "said"),
    [
        ("training_loss", lambda loss: lambda o, t: loss(o, t).repeat(2), "shape (2,)…one num"),
        ("training_loss", lambda loss: lambda o, t: loss(o, t).item(), "float…one number"),
        ("training_loss", lambda loss: lambda o, t: loss(o, t).detach(), "does not depend"),
        ("strata", lambda strata: strata[:3], "`strata` gave the shape (3,)…(64,)"),
        ("base_rate_outputs", lambda outputs: outputs[0], "`base_rate_outputs`…(1,)"),
        ("predictions", lambda found: found[:, 0], "`predictions`…(64,)…(n, k)"),
        ("predictions", lambda found: found - found.mean(), "depend on the other patients"),
        ("held_out_loss", lambda _loss: float("nan"), "`held_out_loss`…infinite"),
        ("usable", lambda found: found * np.nan, "`usable`…finite"),
        ("patient_losses", lambda losses: losses[:, None], "`patient_losses`…(64, 1)"),
        ("patient_losses", lambda losses: losses * np.nan, "`patient_losses`…finite"),
        ("patient_losses", lambda losses: losses / losses.max(), "depend on the other patients"),
        ("figures", lambda found: {n: v + 1 for n, v in found.items()}, "is not the mean of"),
        ("base_rate", lambda rate: np.tile(rate, 2), "`base_rate`…(2,)…(1,)"),
        ("figures", lambda figures: {**figures, "rmse": figures["rmse"][0]}, "'rmse'…(2,)"),
        ("figures", lambda figures: {"rmse": figures["rmse"]}, "`figures` lacks"),
    ],
)
def test_a_mistake_is_named(method: str, by: Callable[..., Any], said: str) -> None:
    task = changed(method, by)
    with raises(Refusal, said):
        check_task(task, patients(task), measures=True)


@pytest.mark.parametrize(
    ("what", "names"),
    [("headline", ("slow",)), ("curves", ("r2", "slow")), ("verdict_metric", "slow")],
)
def test_a_metric_that_a_task_names_and_lacks_is_noticed_before_the_run(
    what: str, names: object
) -> None:
    right = example("regression")
    kind: Any = type("Wrong", (type(right),), {what: names, "__module__": __name__})
    wrong = kind.model_validate(right.model_dump())
    with raises(Refusal, what, "'slow'"):
        check_task(wrong, patients(wrong), measures=True)


@pytest.mark.parametrize(
    ("method", "place"),
    [("training_loss", 0), ("strata", 0), ("patient_losses", 0), ("patient_losses", 1)],
)
def test_a_task_changes_nothing_that_it_is_given(method: str, place: int) -> None:
    right = getattr(type(example("regression")), method)

    def changing(self: Any, *given: Any) -> Any:
        given[place][:] = 0
        return right(self, *given)

    kind: Any = type("Wrong", (type(example("regression")),), {method: changing})
    task = kind.model_validate(example("regression").model_dump())
    with raises(Refusal, "in place"):
        check_task(task, patients(task), measures=True)


@every_task
def test_targets_of_the_tasks_of_the_program_are_of_each_patient_alone(name: str) -> None:
    task = example(name)
    columns = np.zeros((5, len(task.target_columns)))
    assert len(checked_targets(task, columns)) == 5
    assert len(checked_targets(task, columns[:0])) == 0
    assert set(EXAMPLES) == set(REGISTRY)


@pytest.mark.parametrize(
    ("by", "said"),
    [
        (lambda targets: targets - targets.mean(), "depends on the other patients"),
        (lambda targets: np.argsort(np.argsort(targets)), "depends on the other patients"),
        (lambda targets: targets[1:], "another length"),
        (lambda targets: targets * np.inf, "not finite"),
        (lambda targets: targets.tolist(), "a list"),
        (lambda targets: targets.astype(str), "ndarray of <U"),
        (lambda targets: torch.from_numpy(targets), "Tensor"),
    ],
)
def test_targets_made_of_all_patients_are_refused(by: Callable[..., Any], said: str) -> None:
    with raises(Refusal, said):
        checked_targets(changed("targets", by), np.array([[7.0], [3.0], [5.0], [1.0]]))


AGES = np.tile(np.arange(20.0, 101.0), 3)[:, None]


@pytest.mark.parametrize(
    "by",
    [
        lambda targets: targets / targets.max(),  # the largest is in both halves of the patients
        lambda targets: (targets == targets.min()).astype(float),
        lambda targets: np.eye(len(np.unique(targets)))[np.unique(targets, return_inverse=True)[1]],
    ],
)
def test_each_patient_has_the_same_target_alone(by: Callable[..., Any]) -> None:
    with raises(Refusal, "other patients"):
        checked_targets(changed("targets", by), AGES)


@pytest.mark.parametrize("count", [1, 2, 3, 100, 1000])
@pytest.mark.parametrize("unit", [1e-30, 1.0, 1e30])
def test_targets_may_be_rounded_otherwise_alone(unit: float, count: int) -> None:
    columns = np.random.default_rng(0).normal(size=(count, 3)) * unit
    task = example("regression")

    class Score(type(task)):  # type: ignore[misc]
        def targets(self, columns: Any) -> Any:
            return columns @ [0.3, 0.7, -0.1]

    scores = checked_targets(Score.model_validate(task.model_dump()), columns)
    assert len(scores) == count


def test_a_task_may_look_at_the_range_of_its_column() -> None:
    task = changed("targets", lambda targets: targets if targets.min() > 0 else -targets)
    assert checked_targets(task, AGES[:1]).tolist() == [20.0]


def test_a_site_says_so_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = make_study()
    monkeypatch.setattr(
        type(study.task), "patient_losses", lambda _task, predictions, _targets: predictions
    )
    with raises(Refusal, "`patient_losses` gave"):
        Hospital(make_site(tmp_path, twenty_patients())).describe(study)


DIM = 6
RIGHT = LocalOutcome(torch.zeros(DIM), 1)


def trained(folder: Path, monkeypatch: pytest.MonkeyPatch, gives: Any, **arm: Any) -> Any:
    monkeypatch.setattr(FedAvg, "train", lambda _arm, _work: gives)
    study = make_study(arms={"fedavg": arm, "local": {}})
    hospital = Hospital(make_site(folder, twenty_patients()))
    hospital.describe(study)
    return hospital.train(TrainRequest(study, "fedavg", 1, torch.zeros(DIM), None))


def test_what_is_as_it_should_be_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert trained(tmp_path, monkeypatch, RIGHT).delta.tolist() == [0.0] * DIM


@pytest.mark.parametrize("arm", [{}, {"own_parameters": ["output_bias"]}])
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"delta": torch.ones(1)}, "`delta` has the shape (1,)…(6,)"),
        ({"delta": torch.ones(DIM).double()}, "torch.float64"),
        ({"delta": None}, "`delta` is a NoneType"),
        ({"delta": torch.ones(DIM, requires_grad=True)}, "detach"),
        ({"samples_seen": 2.0}, "`samples_seen` is 2.0"),
        ({"samples_seen": torch.tensor(2)}, "`samples_seen` is tensor(2)"),
        ({"samples_seen": 0}, "`samples_seen` is 0"),
        ({"samples_seen": 2**54}, "`samples_seen` is"),
        ({"steps": 0}, "`steps` is 0"),
        ({"attachments": {"bias": 1.0}}, "'bias' of `attachments` is…float"),
        ({"keep": [torch.ones(1)]}, "`keep` is a list"),
        ({"keep": {1: torch.ones(1)}}, "of `keep` is a int"),
        ({"keep": {"a": torch.ones(1, requires_grad=True)}}, "'a' of `keep`…detach"),
    ],
)
def test_a_wrong_outcome_is_told_in_words(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: Mapping[str, Any],
    arm: Mapping[str, Any],
    said: str,
) -> None:
    with raises(Refusal, said) as problem:
        trained(tmp_path, monkeypatch, replace(RIGHT, **changes), **arm)
    assert says(str(problem.value), "fedavg", "'train'", "round 1")


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (None, "`personal` gave back a NoneType"),
        (torch.ones(1), "torch.float32 (1,)"),
        (torch.ones(0, DIM), "torch.float32 (0, 6)"),
        (torch.ones(2, DIM).double(), "torch.float64 (2, 6)"),
        (torch.ones(DIM, requires_grad=True), "detach"),
    ],
)
def test_a_personal_model_that_is_none_is_told_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: Any, said: str
) -> None:
    monkeypatch.setattr(FedAvg, "personal", lambda _arm, _work: found)
    with raises(Refusal, said):
        trained(tmp_path, monkeypatch, RIGHT)


@pytest.mark.parametrize("gives", [None, torch.zeros(DIM), LocalAnswer()])
def test_no_outcome_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gives: Any) -> None:
    with raises(Refusal, f"{type(gives).__name__}", "LocalOutcome"):
        trained(tmp_path, monkeypatch, gives)


@pytest.mark.parametrize("by", ["torch", "numpy"])
@pytest.mark.parametrize("hook", ["train", "personal"])
@pytest.mark.parametrize("what", ["received", "inputs", "targets"])
def test_inputs_are_not_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, hook: str, by: str
) -> None:
    right = getattr(FedAvg, hook)

    def changing(arm: FedAvg, work: LocalWork) -> Any:
        given = getattr(work, what)
        (given if by == "torch" else given.numpy())[:] = 0
        return right(arm, work)

    study = make_study(arms={"fedavg": {}, "local": {}})
    limits = {"installed_methods": {"fedavg": "0" * 64}}
    sites = [make_site(tmp_path, twenty_patients(), limits=limits) for _ in range(2)]
    request = TrainRequest(study, "local", 1, torch.ones(DIM), None)
    alone = Hospital(sites[0]).train(request)
    hospital = Hospital(sites[1])
    with monkeypatch.context() as patch:
        patch.setattr(FedAvg, hook, changing)
        patch.setattr(FedAvg, "sha256", "0" * 64, raising=False)  # as of a package
        with raises(Refusal, "changed", f"work.{what}"):
            hospital.train(replace(request, arm="fedavg", sent=torch.ones(DIM)))
    after = hospital.train(replace(request, sent=torch.ones(DIM)))
    assert torch.equal(after.delta, alone.delta)  # another arm's patients are as they were
    assert after.header.metrics == alone.header.metrics
