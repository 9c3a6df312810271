"""Hospitals that are trained as a stack end where each ends alone, but for float32's rounding."""

from dataclasses import replace
from typing import Any, ClassVar, Literal

import pytest
import torch
from torch import Tensor

from erosion_common.learning.local_sgd import train_locally
from erosion_common.learning.models import Logistic, Mlp, MnistCnn, Resnet18
from erosion_common.learning.networks import ModelBase
from erosion_common.learning.stacked_sgd import Job, train_stacked, why_not_stacked
from erosion_common.learning.training import Training
from erosion_common.study.privacy import problem_with_inputs
from erosion_common.tasks.inputs import TabularTask
from erosion_common.tasks.regression import Regression
from erosion_common.tasks.task import Loss, Task
from tests.support.close import assert_close
from tests.support.refusals import refused
from tests.support.small_study import make_study
from tests.support.stacks import IMAGES, jobs, settings
from tests.support.task_examples import example
from tests.support.tasks import classes_of, image

every_training = pytest.mark.parametrize(
    "training",
    [
        {"steps": 7},
        {"epochs": 2},
        {"epochs": 3, "momentum": 0.9},
        {"steps": 5, "momentum": 0.5, "weight_decay": 0.1},
        {"steps": 4, "order": "sequential"},
        {"epochs": 2, "optimizer": "adam", "weight_decay": 0.01, "learning_rate": 0.01},
    ],
    ids=str,
)


def pulled(job: Job, strength: float) -> Job:
    def pull(parameters: Tensor) -> Tensor:
        return strength * (parameters - 1)

    return job._replace(pull=pull)


def assert_alike(stacked: list[Job], alone: list[Job]) -> None:
    found, expected = train_stacked(stacked), [train_locally(*job) for job in alone]
    for one, other in zip(found, expected, strict=True):
        assert_close(one.delta, other.delta, rtol=1e-5, atol=1e-5)
        assert other.delta.abs().max() > 1e-3
        assert (one.samples_seen, one.steps) == (other.samples_seen, other.steps)


@every_training
@pytest.mark.parametrize("model", [Logistic(), Mlp(), Mlp(hidden=(4, 4), ensemble_of=3)], ids=str)
def test_a_stack_ends_where_each_hospital_ends_alone(
    model: ModelBase, training: dict[str, Any]
) -> None:
    assert_alike(jobs(settings(**training), model), jobs(settings(**training), model))


@pytest.mark.parametrize("model", [MnistCnn(), Resnet18()], ids=lambda model: model.name)
def test_networks_of_images_end_alike(model: ModelBase) -> None:
    training = settings(steps=2, learning_rate=0.02, momentum=0.9)
    assert_alike(jobs(training, model, shape=IMAGES)[:2], jobs(training, model, shape=IMAGES)[:2])


@every_training
def test_pulls_end_alike_beside_hospitals_without_one(training: dict[str, Any]) -> None:
    def some() -> list[Job]:
        first, second, *rest = jobs(settings(**training))
        return [pulled(first, 0.5), *rest[:2], pulled(second, 0.1), rest[2]]

    assert_alike(some(), some())


WEIGHTED = classes_of(3, class_weights=[1.0, 5.0, 0.2])


@pytest.mark.parametrize(
    "task", [*map(example, ("regression", "survival", "classification")), WEIGHTED]
)
def test_every_outcome_s_loss_is_the_same(task: Task) -> None:
    assert why_not_stacked(Mlp(), task, settings(steps=3)) == ""
    assert_alike(jobs(settings(steps=3), task=task), jobs(settings(steps=3), task=task))


def test_results_come_in_the_order_of_the_jobs_whatever_the_stacks() -> None:
    def mixed() -> list[Job]:
        few, many = jobs(settings(epochs=1)), jobs(settings(steps=4))
        return [job for pair in zip(few, many, strict=True) for job in pair]

    assert_alike(mixed(), mixed())


def test_a_hospital_that_diverges_takes_nobody_along() -> None:
    def one_diverges() -> list[Job]:
        made = jobs(settings(steps=4), Logistic())
        samples = made[2].samples
        wild = replace(samples, inputs=samples.inputs * torch.inf)
        return [*made[:2], made[2]._replace(samples=wild), *made[3:]]

    found, expected = train_stacked(one_diverges()), [train_locally(*j) for j in one_diverges()]
    assert not found[2].delta.isfinite().any()
    for place in (0, 1, 3, 4):
        assert_close(found[place].delta, expected[place].delta)


def test_what_draws_or_mixes_patients_is_not_stacked() -> None:
    plain = settings(steps=1)
    assert why_not_stacked(Logistic(), classes_of(2), plain) == ""
    balanced = classes_of(2, class_weights="balanced")
    assert "class_weights" in why_not_stacked(Logistic(), balanced, plain)
    changed = settings(steps=1, augmentation={"flip": ["horizontal"]})
    pictures = image(kind="image", classes=[0, 1], shape=[1, 12, 12], mean=[0.1], deviation=[0.3])
    assert "augmentation" in why_not_stacked(MnistCnn(), pictures, changed)

    class Own(Logistic):
        is_stackable = False

    assert "model" in why_not_stacked(Own(), classes_of(2), plain)


# -- A task that mixes patients in its loss is not taken for one that keeps them apar ------------

VALUES = {"target": "y", "centre": 0, "spread": 1, "features": ["x"], "missing": "drop"}


class Centred(Regression):
    """Another loss on top of a task that keeps patients apart."""

    outcome: Literal["centred"] = "centred"  # type: ignore[assignment]

    def training_loss(self, targets: Tensor) -> Loss:
        """Errors around the mean of the hospital's patients."""
        mean = targets.mean()
        return lambda outputs, batch: (outputs[:, 0] - (batch - mean)).square().mean()


class CentredFromATable(TabularTask, Centred):
    """As a study has it."""


class Kept(Centred):
    """The same with the promise made anew."""

    patients_apart: ClassVar[bool] = True

    def training_loss(self, targets: Tensor) -> Loss:
        """Of each patient alone."""
        del targets
        return lambda outputs, batch: (outputs[:, 0] - batch).square().mean()


class KeptFromATable(TabularTask, Kept):
    """As a study has it."""


def test_whoever_does_not_say_so_does_not_have_it() -> None:
    mixing, kept = CentredFromATable.model_validate(VALUES), KeptFromATable.model_validate(VALUES)
    assert "patients_apart" in (problem_with_inputs(mixing, "user") or "")
    assert problem_with_inputs(kept, "user") is None
    plain = Training(steps=2)
    assert "patients_apart" in why_not_stacked(Logistic(), mixing, plain)
    assert why_not_stacked(Logistic(), kept, plain) == ""


def test_a_study_with_privacy_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    study = make_study()
    monkeypatch.setattr(type(study.task), "patients_apart", False)
    privacy = {"epsilon": 3.0, "learning_rate": 1.0}
    with refused(ValueError, "[privacy]", "patients_apart"):
        make_study(privacy=privacy, scaling="user", arms=["fedavg", "local"])
