"""The models of the registry, and their parameters as one vector."""

import pytest
import torch

from erosion_common.learning.models import (
    AnyModel,
    Logistic,
    Mlp,
    MnistCnn,
    Resnet18,
    build_model,
    flat_parameters,
    load_flat_parameters,
    parameter_layout,
)
from erosion_common.learning.trainable import draws_from
from tests.support.refusals import refused


@pytest.mark.parametrize(
    ("settings", "input_shape", "num_classes", "num_parameters"),
    [
        (Logistic(), (13,), 2, 28),  # 13 2 + 2
        (Logistic(), (1, 28, 28), 10, 7_850),  # 784 10 + 10
        (Mlp(hidden=(8,)), (13,), 2, 130),  # 13 8 + 8 + 8 2 + 2
        (Mlp(hidden=(8, 4)), (13,), 3, 163),  # 112 + 8 4 + 4 + 4 3 + 3
        # 320 + 18,496 + 73,856 (convolutions) + 2048 128 + 128 + 1,290 (linear layers)
        (MnistCnn(), (1, 28, 28), 10, 356_234),
        # 448 + 4,640 + 18,496 (convolutions) + 1024 64 + 64 + 455 (linear layers)
        (MnistCnn(width=16), (3, 28, 28), 7, 89_639),
        # torchvision's 11,689,512 - 513,000 + 5,130 (classes) - 2 64 7 7 (grey images)
        (Resnet18(), (1, 28, 28), 10, 11_175_370),
    ],
)
def test_a_model_has_the_expected_size_and_output(
    settings: AnyModel, input_shape: tuple[int, ...], num_classes: int, num_parameters: int
) -> None:
    model = build_model(settings, input_shape, num_classes)
    assert len(flat_parameters(model)) == num_parameters
    with torch.no_grad():
        assert model(torch.zeros(2, *input_shape)).shape == (2, num_classes)
    # A running statistic would be neither trained nor averaged.
    assert list(model.buffers()) == []


def test_logistic_regression_can_start_from_a_cut_off_normal() -> None:
    start = flat_parameters(build_model(Logistic(start_deviation=0.5), (2000,), 2, seed=5))
    weights, biases = start[:-2], start[-2:]
    assert not biases.any()
    assert 0.9 < float(weights.abs().max()) <= 1.0  # two deviations
    # A normal cut off at two deviations spreads by .88 of what it did.
    assert float(weights.std()) == pytest.approx(0.44, abs=0.02)


def test_loading_what_was_flattened_gives_the_same_model_without_shared_memory() -> None:
    source, target = build_model(Mlp(), (4,), 3, seed=1), build_model(Mlp(), (4,), 3, seed=2)
    flat = flat_parameters(source)
    assert (flat.dtype, flat.requires_grad) == (torch.float32, False)
    load_flat_parameters(target, flat)
    flat.zero_()
    assert flat_parameters(source).any()
    assert torch.equal(flat_parameters(target), flat_parameters(source))
    inputs = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(source(inputs), target(inputs))


def test_the_start_depends_on_the_seed_alone_and_moves_no_other_draws() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = flat_parameters(build_model(Mlp(), (4,), 2, seed=7))
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    assert torch.equal(first, flat_parameters(build_model(Mlp(), (4,), 2, seed=7)))
    assert not torch.equal(first, flat_parameters(build_model(Mlp(), (4,), 2, seed=8)))


@pytest.mark.parametrize("settings", [MnistCnn(), Resnet18()])
def test_an_image_network_refuses_a_table(settings: MnistCnn | Resnet18) -> None:
    with refused(ValueError, repr(settings.name)):
        settings.check_task((13,))
    settings.check_task((1, 28, 28))


# -- The places of a model's named parameters ----------------------------------------------------


def test_names_point_to_the_parameters_in_the_flat_vector() -> None:
    settings = Mlp(hidden=(3,))
    layout = parameter_layout(settings, (2,), 2)
    assert dict(layout) == {
        "1.weight": slice(0, 6),
        "1.bias": slice(6, 9),
        "3.weight": slice(9, 15),
        "3.bias": slice(15, 17),
    }
    model = build_model(settings, (2,), 2, seed=4)
    flat = flat_parameters(model)
    for name, parameter in model.named_parameters():
        assert torch.equal(flat[layout[name]], parameter.detach().flatten())


# -- Draws of layers from a seed -----------------------------------------------------------------


def test_layers_draw_what_they_draw_after_torch_s_own_seeding() -> None:
    for seed in (0, 7, 2**63 - 1):
        torch.manual_seed(seed)
        expected = torch.rand(5), torch.nn.functional.dropout(torch.ones(20))
        with draws_from(seed):
            found = torch.rand(5), torch.nn.functional.dropout(torch.ones(20))
        assert torch.equal(found[0], expected[0])
        assert torch.equal(found[1], expected[1])


def raise_after_a_draw() -> None:
    torch.rand(100)
    raise ZeroDivisionError


def test_nobody_s_draws_change_even_after_a_fault() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    with draws_from(5):
        torch.rand(100)
    with pytest.raises(ZeroDivisionError), draws_from(6):
        raise_after_a_draw()
    assert torch.equal(torch.rand(4), expected)
