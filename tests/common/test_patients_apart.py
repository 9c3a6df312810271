"""A task that mixes patients in its loss is not taken for one that keeps them apart."""

from typing import ClassVar, Literal

import pytest
import torch
from torch import Tensor

from erosion_common.learning.local_sgd import Samples, round_generator
from erosion_common.learning.models import Logistic, build_model, flat_parameters
from erosion_common.learning.stacked_sgd import Job, train_stacked, why_not_stacked
from erosion_common.learning.training import Training
from erosion_common.study.privacy import problem_with_inputs
from erosion_common.tasks.inputs import TabularTask
from erosion_common.tasks.regression import Regression
from erosion_common.tasks.task import Loss
from tests.support.refusals import refused
from tests.support.small_study import make_study
from tests.support.tasks import read_task

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


def test_what_would_come_of_a_stack_that_took_such_a_task() -> None:
    """The one loss that it takes is the first hospital's."""
    task = CentredFromATable.model_validate(VALUES)
    model = build_model(Logistic(), (1,), 1)
    hospitals = [torch.tensor([0.0, 2.0]), torch.tensor([10.0, 12.0])]  # both are -1, 1 around
    ends = [
        result.delta
        for result in train_stacked(
            [
                Job(
                    model,
                    flat_parameters(model),
                    Samples(torch.zeros(2, 1), targets, task.training_loss(targets)),
                    Training(steps=1, learning_rate=0.1),
                    round_generator(0, str(number), 1),
                )
                for number, targets in enumerate(hospitals)
            ]
        )
    ]
    assert ends[1][-1] - ends[0][-1] == pytest.approx(2.0)  # and not 0


def test_a_study_with_privacy_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    study = make_study()
    monkeypatch.setattr(type(study.task), "patients_apart", False)
    privacy = {"epsilon": 3.0, "learning_rate": 1.0}
    with refused(ValueError, "[privacy]", "patients_apart"):
        make_study(privacy=privacy, scaling="user", arms=["fedavg", "local"])


def test_built_in_tasks_say_it() -> None:
    assert read_task({"kind": "tabular", "outcome": "regression", **VALUES}).why_not_apart() == ""
