"""The linear model's gradient by hand, and against autograd to the last bit."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from erosion_common.learning.local_sgd import (
    LinearModel,
    Pull,
    Samples,
    round_generator,
    train_locally,
)
from erosion_common.learning.models import Logistic, build_model, flat_parameters
from erosion_common.learning.trainable import freeze
from erosion_common.learning.training import Training
from erosion_common.tasks.task import DerivedLoss, Loss
from tests.support.tasks import read_task

# Inputs, outputs, patients: more of each than the other, one of each, a last batch of one patient.
SHAPES = [(13, 2, 40), (3, 7, 33), (1, 2, 20), (1, 1, 1), (200, 10, 161), (4, 3, 17)]


def by_autograd(model: LinearModel) -> nn.Sequential:
    """The same model, of which the program knows nothing in particular."""
    return nn.Sequential(*copy.deepcopy(list(model)))


def linear_model(num_inputs: int, num_outputs: int) -> LinearModel:
    built = build_model(Logistic(start_deviation=1), (num_inputs,), num_outputs, seed=3)
    assert isinstance(built, LinearModel)
    return built


def drawn(num_inputs: int, num_outputs: int, patients: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    return (
        torch.randn(patients, num_inputs, generator=generator),
        torch.randint(num_outputs, (patients,), generator=generator),
    )


def trained(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    loss: Loss,
    pull: Pull | None = None,
    **training: Any,
) -> Tensor:
    settings = Training(**({"epochs": 3, "batch_size": 16, "learning_rate": 0.3} | training))
    start = flat_parameters(model)
    generator = round_generator(0, "a", 1)
    return train_locally(
        model, start, Samples(inputs, targets, loss), settings, generator, pull
    ).delta


@pytest.mark.parametrize("training", [{}, {"momentum": 0.9}, {"optimizer": "adam"}])
@pytest.mark.parametrize(("num_inputs", "num_outputs", "patients"), SHAPES)
def test_it_trains_as_autograd_does_to_the_last_bit(
    num_inputs: int, num_outputs: int, patients: int, training: dict[str, Any]
) -> None:
    ours = linear_model(num_inputs, num_outputs)
    theirs = by_autograd(ours)
    data = drawn(num_inputs, num_outputs, patients)
    found = trained(ours, *data, cross_entropy, **training)
    assert torch.equal(found, trained(theirs, *data, cross_entropy, **training))
    assert found.any() or num_outputs == 1  # a single class is certain from the start


@pytest.mark.parametrize("frozen", ["1.weight", "1.bias"])
def test_what_is_frozen_has_no_gradient(frozen: str) -> None:
    ours = linear_model(5, 3)
    freeze(ours, (frozen,))
    theirs = by_autograd(ours)
    data = drawn(5, 3, 40)
    assert torch.equal(trained(ours, *data, cross_entropy), trained(theirs, *data, cross_entropy))
    with torch.no_grad():
        ours.gradient_of(cross_entropy)(*data)
    with_gradient = {name for name, found in ours.named_parameters() if found.grad is not None}
    assert with_gradient == {"1.weight", "1.bias"} - {frozen}


@pytest.mark.parametrize("scale", [1, 60])  # of the inputs; logits beyond 20, too
@pytest.mark.parametrize("knows", [True, False])
def test_any_other_loss_says_its_gradient_or_is_differentiated_in_the_outputs(
    scale: float, knows: bool
) -> None:
    raw = {"target": {"time": "days", "event": "died"}, "cut_points": [1, 2, 4], "features": ["x"]}
    task = read_task({"kind": "tabular", "outcome": "survival", **raw})
    generator = torch.Generator().manual_seed(7)
    days = 5 * torch.rand(40, 1, generator=generator)
    targets = torch.cat([days, torch.randint(2, (40, 1), generator=generator)], dim=1)
    inputs = scale * torch.randn(40, 6, generator=generator)
    ours = linear_model(6, 3)
    theirs = by_autograd(ours)
    told = task.training_loss(targets)
    assert isinstance(told, DerivedLoss)
    loss = told if knows else told.__call__
    assert isinstance(loss, DerivedLoss) == knows
    assert torch.equal(trained(ours, inputs, targets, loss), trained(theirs, inputs, targets, loss))
