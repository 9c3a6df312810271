"""A hospital's work that is small enough to be done by hand.

One feature, two classes, so the parameters are (w_0, w_1, b_0, b_1). Every patient has the value 1.
All that happens is along U = (-1, 1, -1, 1): at theta = t U the logits of the classes are -2 t and
2 t. A patient of class 1 has the log loss log(1 + exp(-4 t)), with the gradient -s U where
s = 1 / (1 + exp(4 t)); one of class 0 mirrors that.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from erosion_common.algorithms.base import ArmBase, Layout
from erosion_common.algorithms.personal_layers import take_step
from erosion_common.learning.local_work import LocalOutcome, LocalWork
from erosion_common.learning.models import Logistic, build_model
from erosion_common.learning.training import Training
from tests.support.tasks import classes_of

U = torch.tensor([-1.0, 1.0, -1.0, 1.0])
DIM = 4


def layout() -> Layout:
    return {"1.weight": slice(0, 2), "1.bias": slice(2, 4)}


def work(t: float = 0.0, labels: tuple[int, ...] = (1,), **changes: Any) -> LocalWork:
    """Work from t U on patients of those classes; without other wishes one step of all patients."""
    training = {"steps": 1, "batch_size": len(labels), "learning_rate": 1.0}
    training |= changes.pop("training", {})
    values: dict[str, Any] = {
        "agent": "a",
        "is_user": True,
        "round": 1,
        "seed": 0,
        "model": build_model(Logistic(), (1,), 2),
        "received": t * U,
        "inputs": torch.ones(len(labels), 1),
        "targets": torch.tensor(labels),
        "task": classes_of(2),
        "training": Training.model_validate(training),
    }
    return LocalWork(**{**values, **changes})


def along(vector: Tensor) -> float:
    """The t of a vector t U."""
    t = float(vector @ U) / 4
    assert vector.tolist() == pytest.approx((t * U).tolist(), abs=1e-6)
    return t


def local_round(arm: ArmBase, of: LocalWork, layout: Callable[[], Layout]) -> LocalOutcome:
    """What comes of the step `train`."""
    outcome = take_step(arm, of, layout)
    assert isinstance(outcome, LocalOutcome)
    return outcome
