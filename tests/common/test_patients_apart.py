"""A task that mixes patients in its loss is not taken for one that keeps them apart."""

from typing import ClassVar, Literal

import pytest
from torch import Tensor

from erosion_common.study.privacy import problem_with_inputs
from erosion_common.tasks.inputs import TabularTask
from erosion_common.tasks.regression import Regression
from erosion_common.tasks.task import Loss
from tests.support.refusals import refused
from tests.support.small_study import make_study

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
    """The same with the promise given again."""

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


def test_a_study_with_privacy_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    study = make_study()
    monkeypatch.setattr(type(study.task), "patients_apart", False)
    privacy = {"epsilon": 3.0, "learning_rate": 1.0}
    with refused(ValueError, "[privacy]", "patients_apart"):
        make_study(privacy=privacy, scaling="user", arms=["fedavg", "local"])
