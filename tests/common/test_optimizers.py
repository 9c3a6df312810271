"""The program's own SGD against torch's."""

from typing import Any

import pytest
import torch
from torch import nn

from erosion_common.learning.local_sgd import PlainSgd, optimizer_for
from erosion_common.learning.models import Mlp, MnistCnn, build_model
from erosion_common.learning.training import Training

SETTINGS: list[dict[str, Any]] = [
    {},
    {"weight_decay": 0.03},
    {"momentum": 0.9},
    {"momentum": 0.7, "weight_decay": 0.01, "learning_rate": 0.37},
]


def after_steps(model: nn.Module, optimizer: Any, shape: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(6):
        inputs = torch.randn(5, *shape, generator=generator)
        labels = torch.randint(10, (5,), generator=generator)
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(model(inputs), labels))
        with torch.no_grad():
            optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("shape", [(3,), (1, 12, 12)])
def test_it_ends_where_torch_s_own_ends_to_the_last_bit(
    settings: dict[str, Any], shape: tuple[int, ...]
) -> None:
    training = Training(steps=1, **settings)
    ours, theirs = (
        build_model(Mlp() if len(shape) == 1 else MnistCnn(), shape, 10, seed=3) for _ in range(2)
    )
    optimizer = optimizer_for(list(ours.parameters()), training)
    assert isinstance(optimizer, PlainSgd)
    torchs = torch.optim.SGD(
        theirs.parameters(),
        lr=training.learning_rate,
        momentum=training.momentum,
        weight_decay=training.weight_decay,
    )
    for one, other in zip(
        after_steps(ours, optimizer, shape), after_steps(theirs, torchs, shape), strict=True
    ):
        assert torch.equal(one, other)


def test_a_parameter_without_a_gradient_stays_where_it_is() -> None:
    used, unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = PlainSgd([used, unused], Training(steps=1, weight_decay=0.5, momentum=0.5))
    used.grad = torch.ones(2)
    with torch.no_grad():
        optimizer.step()
    assert used.tolist() != [1.0, 1.0]
    assert unused.tolist() == [1.0, 1.0]


def test_adam_is_torch_s() -> None:
    parameters = [nn.Parameter(torch.ones(2))]
    found = optimizer_for(parameters, Training(steps=1, optimizer="adam"))
    assert isinstance(found, torch.optim.Adam)
