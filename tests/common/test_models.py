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
)
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


def test_logistic_regression_starts_at_zero() -> None:
    assert not flat_parameters(build_model(Logistic(), (4,), 2, seed=5)).any()


def test_logistic_regression_can_start_from_a_cut_off_normal() -> None:
    start = flat_parameters(build_model(Logistic(start_deviation=0.5), (2000,), 2, seed=5))
    weights, biases = start[:-2], start[-2:]
    assert not biases.any()
    assert 0.9 < float(weights.abs().max()) <= 1.0  # two deviations
    # A normal cut off at two deviations spreads by .88 of what it did.
    assert float(weights.std()) == pytest.approx(0.44, abs=0.02)


def test_the_start_depends_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    first = flat_parameters(build_model(Mlp(), (4,), 2, seed=7))
    torch.manual_seed(2)
    assert torch.equal(first, flat_parameters(build_model(Mlp(), (4,), 2, seed=7)))
    assert not torch.equal(first, flat_parameters(build_model(Mlp(), (4,), 2, seed=8)))


def test_building_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    build_model(Mlp(), (4,), 2, seed=7)
    assert torch.equal(before, torch.get_rng_state())


def test_flat_parameters_are_a_copy_in_float32() -> None:
    model = build_model(Mlp(), (4,), 2)
    flat = flat_parameters(model)
    flat.zero_()
    assert flat.dtype == torch.float32
    assert not flat.requires_grad
    assert flat_parameters(model).any()


def test_loading_what_was_flattened_gives_the_same_model() -> None:
    source, target = build_model(Mlp(), (4,), 3, seed=1), build_model(Mlp(), (4,), 3, seed=2)
    flat = flat_parameters(source)
    load_flat_parameters(target, flat)
    assert torch.equal(flat_parameters(target), flat)
    inputs = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(source(inputs), target(inputs))


def test_a_loaded_model_does_not_share_memory_with_the_vector() -> None:
    model = build_model(Logistic(), (4,), 2)
    flat = torch.ones(10)
    load_flat_parameters(model, flat)
    flat.zero_()
    assert flat_parameters(model).tolist() == [1.0] * 10


def test_a_vector_of_another_length_is_refused() -> None:
    model = build_model(Logistic(), (4,), 2)
    with refused(ValueError, "(9,)", 10):
        load_flat_parameters(model, torch.zeros(9))


@pytest.mark.parametrize("settings", [MnistCnn(), Resnet18()])
def test_an_image_network_refuses_a_table(settings: MnistCnn | Resnet18) -> None:
    with refused(ValueError, repr(settings.name)):
        settings.check_task((13,))
    settings.check_task((1, 28, 28))


@pytest.mark.parametrize("settings", [Logistic(), Mlp()])
def test_a_flat_model_takes_tables_and_images(settings: Logistic | Mlp) -> None:
    settings.check_task((13,))
    settings.check_task((1, 28, 28))
