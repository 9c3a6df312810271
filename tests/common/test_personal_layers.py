"""Parameters that a hospital keeps."""

from dataclasses import replace
from math import exp, log

import pytest
import torch

from erosion_common.algorithms.fedavg import FedAvg, PersonalIntercept
from erosion_common.algorithms.personal_layers import (
    personal_parameters,
    problem_with_own,
)
from erosion_common.algorithms.scaffold import Scaffold
from tests.support.local_works import layout, local_round, work
from tests.support.tasks import classes_of

BIAS = PersonalIntercept()


def test_the_bias_starts_at_the_base_rates_of_the_hospital() -> None:
    # (1 + 1) / (4 + 2) and (3 + 1) / (4 + 2) as logits, centred
    half = log(2) / 2
    found = classes_of(2).base_rate_outputs(torch.tensor([0, 1, 1, 1]))
    assert found.tolist() == pytest.approx([-half, half])
    personal = personal_parameters(BIAS, work(0.3, (0, 1, 1, 1)), layout)
    assert personal.tolist() == pytest.approx([-0.3, 0.3, -half, half])


def test_the_bias_is_trained_and_kept_and_its_update_is_zero() -> None:
    kept = {"own_parameters": torch.tensor([-0.5, 0.5])}
    outcome = local_round(BIAS, work(0.5, kept=kept), layout)
    # weights and bias together are at t = 0.5, so every parameter moves by 0.1192
    step = 1 / (1 + exp(2))
    assert outcome.delta.tolist() == pytest.approx([-step, step, 0.0, 0.0])
    assert outcome.keep["own_parameters"].tolist() == pytest.approx([-0.5 - step, 0.5 + step])


def test_what_was_received_for_them_does_not_matter() -> None:
    kept = {"own_parameters": torch.tensor([-0.5, 0.5])}
    task = work(0.5, kept=kept)
    other = replace(task, received=task.received + torch.tensor([0.0, 0.0, 7.0, 8.0]))
    assert torch.equal(
        local_round(BIAS, task, layout).delta, local_round(BIAS, other, layout).delta
    )
    assert torch.equal(
        personal_parameters(BIAS, task, layout), personal_parameters(BIAS, other, layout)
    )


def test_whole_layers_can_be_kept_by_pattern() -> None:
    arm = FedAvg(own_parameters=("*.weight",))
    first = local_round(arm, work(0.0), layout)
    assert first.delta.tolist() == pytest.approx([0.0, 0.0, -0.5, 0.5])
    assert first.keep["own_parameters"].tolist() == pytest.approx([-0.5, 0.5])


def test_a_method_without_own_parameters_keeps_none() -> None:
    assert not local_round(FedAvg(), work(), layout).keep


def test_a_control_variate_says_nothing_of_what_is_kept() -> None:
    outcome = local_round(Scaffold(own_parameters=("output_bias",)), work(), layout)
    assert outcome.attachments["control"][:2].abs().min() > 0
    assert outcome.attachments["control"][2:].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        ((), None),
        (("output_bias",), None),
        (("1.w*",), None),
        (("fc.weight",), "names 'fc.weight'; the model has 1.weight, 1.bias"),
        (("output_layer",), "names every parameter of the model"),
        (("1.weight", "output_bias"), "names every parameter of the model"),
    ],
)
def test_what_the_model_has_not_cannot_be_kept(names: tuple[str, ...], problem: str | None) -> None:
    found = problem_with_own(names, layout)
    assert found is None if problem is None else problem in (found or "")
